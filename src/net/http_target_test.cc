// Paths and queries of requests.
#include "net/http_target.h"

#include "testing/test.h"

namespace ae::net {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

AE_TEST("http target/a path and a query are decoded once") {
  const auto found = parse_target("/api/jobs/a%2Fb%20%C3%A4/%252e?x=1&y=a%26b+c&x=2&z&=q");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->path, (std::vector<std::string>{"api", "jobs", "a/b ä", "%2e"}));
  EXPECT_EQ(found->query, (Pairs{{"x", "1"}, {"y", "a&b c"}, {"x", "2"}, {"z", ""}, {"", "q"}}));
  EXPECT_TRUE(parse_target("/")->path.empty());
  EXPECT_EQ(parse_target("/a/")->path.size(), 2u);
}

AE_TEST("http target/what is no path, or not encoded, is refused") {
  for (const char* target : {"", "a", "?x=1", "/a b", "/a#b", "/ä", "/%", "/%zz", "/%ff", "/..",
                             "/%2e%2E", "/a%00", "/a?x=%ff", "/a?x=%00"}) {
    const auto found = parse_target(target);
    ASSERT_FALSE(found) << target;
    EXPECT_EQ(found.error().code, Code::input_invalid);
  }
}

}  // namespace
}  // namespace ae::net
