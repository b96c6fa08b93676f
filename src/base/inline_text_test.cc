#include "base/inline_text.h"

#include <functional>
#include <utility>

#include "base/ids.h"
#include "testing/test.h"

namespace ae {
namespace {

using ShortText = InlineText<8>;

AE_TEST("base/inline_text/a text takes one byte more than it holds inside") {
  EXPECT_EQ(sizeof(InlineText<36>), 37u);
  EXPECT_EQ(sizeof(IdempotencyKey), 9u);
}

AE_TEST("base/inline_text/texts of all lengths are kept, compared and hashed alike") {
  for (std::size_t size = 0; size < 300; ++size) {
    const std::string plain(size, 'x');
    const ShortText text(plain), same(plain), longer(plain + "x");
    EXPECT_EQ(text.view(), plain);
    EXPECT_EQ(text.size(), size);
    EXPECT_EQ(text.empty(), size == 0);
    EXPECT_EQ(text, same);
    EXPECT_EQ(text, plain);
    EXPECT_NE(text, longer);
    EXPECT_LT(text, longer);
    EXPECT_EQ(std::hash<ShortText>()(text), std::hash<ShortText>()(same));
  }
}

AE_TEST("base/inline_text/copies share a long text, and each outlives the others") {
  const std::string plain(100, 'x');
  ShortText first(plain);
  ShortText copy = first;
  EXPECT_EQ(copy.data(), first.data());
  ShortText moved = std::move(first);
  EXPECT_EQ(moved.data(), copy.data());
  copy = "short";
  EXPECT_EQ(moved, plain);
  moved = *&moved;
  EXPECT_EQ(moved, plain);
  moved = ShortText("other, longer text");
  EXPECT_EQ(moved, "other, longer text");
  EXPECT_EQ(copy, "short");
}

}  // namespace
}  // namespace ae
