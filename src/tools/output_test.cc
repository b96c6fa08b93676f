#include "tools/output.h"

#include "json/json.h"
#include "testing/test.h"

namespace ae::tools {
namespace {

AE_TEST("tools/an invalid output is recorded by reason, hash, size and first bytes") {
  const Value v = invalid_output("not JSON", "abc", 3);
  EXPECT_EQ(
      canonical(v),
      R"({"head":"abc","invalid":true,"reason":"not JSON",)"
      R"("sha256":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad","size":3})");
}

AE_TEST("tools/the head of an invalid output does not split a character") {
  const std::string bytes = std::string(255, 'a') + "é and more";
  EXPECT_EQ(invalid_output("r", bytes, bytes.size()).text("head"), std::string(255, 'a'));
}

AE_TEST("tools/control characters and invalid UTF-8 are escaped") {
  EXPECT_EQ(printable("a\x1b[31m\xff\n\xc2\x9b\x7f é", LineBreaks::escape),
            "a\\x1b[31m\\xff\\n\\xc2\\x9b\\x7f é");
  EXPECT_EQ(printable("one\ntwo\t\r", LineBreaks::keep), "one\ntwo\t\\r");
  EXPECT_EQ(printable("\xed\xa0\x80\xf4\x90\x80\x80\xc3", LineBreaks::keep),
            "\\xed\\xa0\\x80\\xf4\\x90\\x80\\x80\\xc3");
}

AE_TEST("tools/any bytes give a head that is valid JSON") {
  std::string bytes;
  for (int i = 0; i < 1024; ++i) bytes += static_cast<char>(i * 37 + i / 256);
  for (std::size_t at = 0; at + 300 < bytes.size(); ++at) {
    const Value v = invalid_output("r", std::string_view(bytes).substr(at, 300), 300);
    EXPECT_TRUE(parse_json(canonical(v)).has_value());
  }
}

}  // namespace
}  // namespace ae::tools
