// SplitRequest: finds the messages of a request in its canonical text.
#include "log/split_request.h"

#include "json/json.h"

namespace ae {

std::optional<SplitRequest> split_request(const Value& request, std::string_view text) {
  constexpr std::string_view kMessages = "messages";
  if (!request[kMessages].is_array() || request[kMessages].size() == 0) return std::nullopt;
  std::string piece;
  std::size_t at = 0;
  for (const auto& [key, value] : request.members()) {
    piece.clear();
    write_canonical_string(key, piece);
    at += 1 + piece.size() + 1;  // { or a comma, the key, a colon
    if (key == kMessages) break;
    piece.clear();
    write_canonical(value, piece);
    at += piece.size();
  }
  SplitRequest cut;
  cut.head = text.substr(0, ++at);  // including the bracket
  for (const Value& message : request[kMessages].items()) {
    piece.clear();
    write_canonical(message, piece);
    cut.messages.push_back(text.substr(at, piece.size()));
    at += piece.size() + 1;
  }
  cut.tail = text.substr(at - 1);
  return cut;
}

}  // namespace ae
