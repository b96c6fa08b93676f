// Which texts match which format of JSON Schema.
#include "schema/text_format.h"

#include <map>
#include <string>
#include <vector>

#include "testing/test.h"

namespace ae {
namespace {

AE_TEST(
    "schema/text_format/email, uri, date and date-time accept valid texts and reject similar "
    "ones") {
  const std::map<std::string, std::vector<std::string>> valid = {
      {"email", {"ada@example.org", "a.b+c@x-y.example", "root@localhost", "o'hara@ex.org"}},
      {"uri",
       {"https://example.org/a?b=c#d", "mailto:ada@example.org", "urn:isbn:1",
        "http://[::1]:80/%C3%A4"}},
      {"date", {"2026-05-02", "2024-02-29"}},
      {"date-time",
       {"2026-05-02T09:30:00Z", "2026-05-02t09:30:00z", "2026-05-02T09:30:00.123456789+02:00",
        "2026-05-02T23:59:59-11:30"}},
  };
  const std::map<std::string, std::vector<std::string>> invalid = {
      {"email",
       {"", "ada", "@example.org", "ada@", "ada@@example.org", "a b@example.org", ".a@example.org",
        "a..b@example.org", "ada@-x.org", "ada@x..org", "ada@x.org\n",
        std::string(65, 'a') + "@x.org", "a@" + std::string(64, 'b') + ".org"}},
      {"uri",
       {"", "example.org", "/a", "https:", "1http://x", "http://a b", "http://x/%4", "http://x/ä",
        "a:b#c#d"}},
      {"date", {"", "2026-5-2", "2026-02-30", "02.05.2026", "2026-05-02T00:00:00Z", "2026-05-02T"}},
      {"date-time",
       {"", "2026-05-02", "2026-05-02T09:30:00", "2026-05-02 09:30:00Z", "2026-05-02T09:30Z",
        "2026-05-02T24:00:00Z", "2026-05-02T09:30:00.Z", "2026-05-02T09:30:00+2:00",
        "2026-05-02T09:30:00+02:00:00", "2026-05-02T09:30:00+24:00", "2026-05-02T09:30:00ZZ"}},
  };
  for (const auto& [format, texts] : valid) {
    EXPECT_FALSE(describe_format(format).empty());
    for (const std::string& text : texts)
      EXPECT_TRUE(matches_format(format, text)) << format << " " << text;
  }
  for (const auto& [format, texts] : invalid) {
    for (const std::string& text : texts)
      EXPECT_FALSE(matches_format(format, text)) << format << " " << text;
  }
}

AE_TEST("schema/text_format/an unknown format accepts every text") {
  EXPECT_TRUE(matches_format("ipv4", "anything"));
  EXPECT_TRUE(describe_format("ipv4").empty());
}

}  // namespace
}  // namespace ae
