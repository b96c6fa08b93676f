// SplitRequest: the canonical text of what a model is asked, cut at its messages, so that each message is stored once.
//
// A conversation of n turns repeats its beginning n times. Stored by content hash, message by message, each stands
// once in a store, whoever repeats it. Threads: a pure function.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "json/value.h"

namespace ae {

// head ‖ messages, with commas between them ‖ tail. Borrows the text.
struct SplitRequest {
  std::string_view head, tail;
  std::vector<std::string_view> messages;
};

// REQUIRES: text is the canonical text of `request`. Nothing when it has no messages.
std::optional<SplitRequest> split_request(const Value& request, std::string_view text);

}  // namespace ae
