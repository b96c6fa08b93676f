// Several texts in one column of a table, one per line; none contains a line break.
//
// Stored: the form of such a column. Threads: pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ae::store {

std::string join_lines(const std::vector<std::string>& texts);
std::vector<std::string> split_lines(std::string_view text);

}  // namespace ae::store
