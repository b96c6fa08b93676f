// Decoding of JSON escapes on several levels, and mapping positions back to the text.
#include "tools/unescaped_views.h"

#include <string>
#include <vector>

#include "testing/test.h"

namespace ae::tools {
namespace {

std::vector<std::string> read(std::string_view text) {
  const UnescapedViews views(text, UnescapedViews::Continuation::nothing);
  std::vector<std::string> levels;
  for (std::size_t i = 1; i <= views.levels(); ++i) levels.emplace_back(views.text(i));
  return levels;
}
using Levels = std::vector<std::string>;

AE_TEST("layers/each level has the escapes of the one below read, and all else as it stands") {
  EXPECT_EQ(read("plain"), Levels{});
  EXPECT_EQ(read(R"(a\nb\/c\"\\)"), (Levels{"a\nb/c\"\\"}));
  EXPECT_EQ(read(R"(\u0041\u00e4\u20AC\ud83d\ude00)"), (Levels{"Aä€😀"}));
  EXPECT_EQ(read(R"(\\u0041)"), (Levels{R"(\u0041)", "A"}));
  EXPECT_EQ(read(R"(\u005cu0041)"), (Levels{R"(\u0041)", "A"}));
  EXPECT_EQ(read(std::string(16, '\\') + "/").size(), kLevelsMax);
}

AE_TEST("layers/what is no escape is none") {
  for (const char* text : {"\\", "\\x41", "\\u", "\\u00", "\\u004g", "\\ud83d", "\\ude00",
                           "\\ud83d\\u0041x", "\\U0041"}) {
    EXPECT_EQ(read(text).empty(), std::string_view(text) != "\\ud83d\\u0041x") << text;
  }
  EXPECT_EQ(read("\\ud83d\\u0041"), (Levels{"\\ud83dA"}));
}

AE_TEST("layers/each byte is found in the text, with all of its escape") {
  //                      0123456789…
  const std::string text = R"(x\\u00e4y\/)";
  const UnescapedViews views(text, UnescapedViews::Continuation::nothing);
  ASSERT_EQ(views.levels(), 2u);
  EXPECT_EQ(views.text(1), R"(x\u00e4y/)");
  EXPECT_EQ(views.text(2), "xäy/");
  const auto at = [&](std::size_t level, std::size_t begin, std::size_t end) {
    const UnescapedViews::Span span = views.to_source(level, {begin, end});
    return text.substr(span.begin, span.end - span.begin);
  };
  EXPECT_EQ(at(2, 0, 1), "x");
  EXPECT_EQ(at(2, 1, 3), R"(\\u00e4)");
  EXPECT_EQ(at(2, 1, 2), R"(\\u00e4)") << "half a character is all of its escape";
  EXPECT_EQ(at(2, 3, 5), R"(y\/)");
  EXPECT_EQ(at(1, 1, 2), R"(\\)");
  EXPECT_EQ(at(0, 1, 2), R"(\)");
}

AE_TEST("layers/a place in an escape of any level is none to cut at") {
  const std::string text = R"(x\\u00e4y\/)";
  const UnescapedViews views(text, UnescapedViews::Continuation::nothing);
  const std::vector<std::size_t> expected{0, 1, 1, 1, 1, 1, 1, 1, 8, 9, 9, 11};
  for (std::size_t at = 0; at <= text.size(); ++at) {
    EXPECT_EQ(views.boundary_at_or_before(at), expected[at]) << at;
  }
  EXPECT_EQ(views.to_level(2, 8), 3u);
  EXPECT_EQ(views.to_level(2, 11), 5u);
}

AE_TEST("layers/what may be the beginning of an escape is not read before its end has come") {
  const std::vector<std::pair<std::string, std::size_t>> cases{
      {"ab", 2},        {"ab\\", 2},       {"ab\\u004", 2},  {"ab\\\\", 2},
      {"ab\\\\u00", 2}, {"ab\\n", 4},      {"\\ud83d", 0},   {"\\ud83d\\ude", 0},
      {"\\u005c", 0},   {"\\u005cu00", 0}, {"\\u0041\\", 6}, {"ab\\x", 4}};
  for (const auto& [text, complete_to] : cases) {
    EXPECT_EQ(UnescapedViews(text, UnescapedViews::Continuation::more).complete_to(), complete_to)
        << text;
    EXPECT_EQ(UnescapedViews(text, UnescapedViews::Continuation::nothing).complete_to(),
              text.size())
        << text;
  }
}

}  // namespace
}  // namespace ae::tools
