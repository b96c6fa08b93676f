// JsonParser: builds a SourceTree from JSON. parse_json (json/json.h) has accepted the text, so
// this pass validates nothing again; it counts characters.
#include <string>

#include "agents/source_tree.h"
#include "base/error.h"
#include "json/json.h"

namespace ae::agents {
namespace {

class JsonParser {
 public:
  JsonParser(std::string_view text, Diagnostics& diagnostics)
      : text_(text), builder_(diagnostics) {}

  bool run(SourceTree& out) {
    while (!builder_.done()) {
      if (!step()) return false;
    }
    out = builder_.take();
    return true;
  }

 private:
  bool step() {
    const char c = text_[at_];
    const SourceLocation at{.character = character_};
    switch (c) {
      case '{':
        advance(1);
        return builder_.open(SourceTree::Kind::mapping, at);
      case '[':
        advance(1);
        return builder_.open(SourceTree::Kind::list, at);
      case '}':
      case ']':
        advance(1);
        return builder_.close();
      case ' ':
      case '\n':
      case '\r':
      case '\t':
      case ',':
      case ':':
        advance(1);
        return true;
      default:
        return scalar(at);
    }
  }

  bool scalar(SourceLocation at) {
    std::size_t end = at_ + 1;
    if (text_[at_] == '"') {
      while (text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
      ++end;
    } else {
      end = std::min(text_.find_first_of(",:]} \n\r\t", at_), text_.size());
    }
    auto value = parse_json(text_.substr(at_, end - at_));
    AE_CHECK(value.has_value(), "a part of a JSON text is JSON");
    advance(end - at_);
    if (!builder_.expects_key()) return builder_.scalar(*std::move(value), at);
    builder_.key(value->as_string(), at);
    return true;
  }

  void advance(std::size_t bytes) {
    for (; bytes > 0; --bytes, ++at_) {
      if ((static_cast<unsigned char>(text_[at_]) & 0xC0) != 0x80) ++character_;
    }
  }

  std::string_view text_;
  SourceTreeBuilder builder_;
  std::size_t at_ = 0;
  std::uint32_t character_ = 0;
};

}  // namespace

bool read_json(std::string_view text, Diagnostics& diagnostics, SourceTree& out) {
  return JsonParser(text, diagnostics).run(out);
}

}  // namespace ae::agents
