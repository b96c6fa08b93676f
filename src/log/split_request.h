// SplitRequest: splits the canonical text of a model request at its messages, so that
// each message is stored once.
//
// A conversation of n turns repeats its beginning n times. As blobs, its messages are stored once
// per store, however often they are repeated. Threads: a pure function.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "json/value.h"

namespace ae {

// head ‖ messages, separated by commas ‖ tail. Borrows the text.
struct SplitRequest {
  std::string_view head, tail;
  std::vector<std::string_view> messages;
};

// REQUIRES: text is the canonical text of `request`. nullopt if it has no messages.
std::optional<SplitRequest> split_request(const Value& request, std::string_view text);

}  // namespace ae
