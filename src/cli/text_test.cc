// Tests of escaped, cut and aligned text.
#include "cli/text.h"

#include "testing/test.h"

namespace ae::cli {
namespace {

AE_TEST("cli/control characters are escaped") {
  EXPECT_EQ(safe("a\x1b[2Jb"), "a\\x1b[2Jb");
  EXPECT_EQ(safe("a\nb\tc"), "a\\nb\\tc");
  EXPECT_EQ(safe("a\nb", true), "a\nb");
  EXPECT_EQ(safe("\xC2\x9B"), "\\u{9B}");                          // C1: a CSI in one byte
  EXPECT_EQ(safe(std::string("\xE2") + "\x80\xAE"), "\\u{202E}");  // reverses the text direction
  EXPECT_EQ(safe("naïve 漢字 🙂"), "naïve 漢字 🙂");
}

AE_TEST("cli/control characters in JSON are escaped as JSON") {
  EXPECT_EQ(safe_json("{\n  \"a\": \"\x7f\xC2\x9B\"\n}"), "{\n  \"a\": \"\\u007f\\u009b\"\n}");
  EXPECT_EQ(safe_json(std::string("\"\xE2") + "\x80\xAE\""), "\"\\u202e\"");
  EXPECT_EQ(safe_json("\"na\xC3\xAFve \\u001b 漢字 🙂\""), "\"na\xC3\xAFve \\u001b 漢字 🙂\"");
}

AE_TEST("cli/widths are counted in columns, and text is cut to fit them") {
  EXPECT_EQ(width_of("abc"), 3u);
  EXPECT_EQ(width_of("漢字"), 4u);
  EXPECT_EQ(width_of("e\xCC\x81"), 1u);
  EXPECT_EQ(cut("abcdef", 4), "abc…");
  EXPECT_EQ(cut("abcd", 4), "abcd");
  EXPECT_EQ(cut("漢字漢字", 5), "漢字…");
  EXPECT_EQ(cut("abc", 0), "");
  EXPECT_EQ(pad("漢", 4), "漢  ");
}

AE_TEST("cli/a table has the width of its content, and its last column is cut") {
  Table table({"ID", "WHAT"});
  table.row({{"a"}, {"short"}});
  table.row({{"long-name"}, {"a very long text that does not fit"}});
  EXPECT_EQ(table.text(Paint(false), 30),
            "ID         WHAT\n"
            "a          short\n"
            "long-name  a very long text t…\n");
  EXPECT_EQ(Table({"X"}).text(Paint(false), 0), "X\n");
}

AE_TEST("cli/an amount in millionths is printed as the shortest decimal") {
  EXPECT_EQ(amount_text(0), "0");
  EXPECT_EQ(amount_text(1), "0.000001");
  EXPECT_EQ(amount_text(3'510), "0.00351");
  EXPECT_EQ(amount_text(12'000'000), "12");
  EXPECT_EQ(amount_text(1'500'000), "1.5");
}

AE_TEST("cli/colours can be turned off") {
  EXPECT_EQ(Paint(false)(Tint::bad, "x"), "x");
  EXPECT_EQ(Paint(true)(Tint::bad, "x"), "\x1b[31mx\x1b[0m");
  EXPECT_EQ(Paint(true)(Tint::none, "x"), "x");
}

}  // namespace
}  // namespace ae::cli
