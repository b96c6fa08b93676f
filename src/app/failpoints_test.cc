// Tests of failpoints and of store URLs.
#include "app/failpoints.h"

#include "app/store_url.h"
#include "testing/test.h"

namespace ae::app {
namespace {

using async::FailpointAction;

AE_TEST("app/failpoints count hits from one, per name") {
  auto points = Failpoints::parse("a.b=error@2;c.d=error_after;;e.f=pause:0", "");
  ASSERT_TRUE(points) << points.error().message;
  EXPECT_EQ((*points)->hit("a.b"), FailpointAction::proceed);
  EXPECT_EQ((*points)->hit("c.d"), FailpointAction::error_after);
  EXPECT_EQ((*points)->hit("a.b"), FailpointAction::error);
  EXPECT_EQ((*points)->hit("a.b"), FailpointAction::proceed);
  EXPECT_EQ((*points)->hit("c.d"), FailpointAction::error_after);
  EXPECT_EQ((*points)->hit("e.f"), FailpointAction::proceed);
  EXPECT_EQ((*points)->hit("unknown"), FailpointAction::proceed);
}

AE_TEST("app/invalid failpoints are refused") {
  for (const char* bad : {"a", "a=", "=exit", "a=boom", "a=exit@", "a=exit@0", "a=exit@x",
                          "a=pause", "a=pause:", "a=pause:1s", "A=exit", "a=exit;b"}) {
    auto points = Failpoints::parse(bad, "");
    ASSERT_FALSE(points) << bad;
    EXPECT_EQ(points.error().code, Code::usage);
  }
}

AE_TEST("app/without the variables there are no failpoints") {
  auto none = Failpoints::parse("", "");
  ASSERT_TRUE(none);
  EXPECT_EQ(*none, nullptr);
  auto traces = Failpoints::parse("", "1");
  ASSERT_TRUE(traces);
  EXPECT_NE(*traces, nullptr);
}

AE_TEST("app/a store URL is parsed and printed without its password") {
  auto store = store_url("sqlite:a/b.db");
  ASSERT_TRUE(store);
  EXPECT_EQ(store->path, "a/b.db");
  EXPECT_EQ(store->folder(), "a");
  EXPECT_EQ(store->socket_path(), "a/aetheris.sock");
  EXPECT_EQ(store_url("sqlite:x.db")->folder(), ".");
  EXPECT_EQ(store_url("sqlite:///x.db")->path, "/x.db");
  EXPECT_EQ(store_url("sqlite:/x.db")->folder(), "/");
  EXPECT_EQ(store_url("memory:")->kind, StoreUrl::Kind::memory);
  EXPECT_EQ(store_url("postgres://h/d")->kind, StoreUrl::Kind::postgres);
  EXPECT_EQ(store_url("postgresql://h/d")->path, "postgresql://h/d");
  const auto shown = [](const char* url) { return store_url(url)->text(); };
  EXPECT_EQ(shown("postgres://h/d"), "postgres://h/d");
  EXPECT_EQ(shown("postgres://u:secret@h:5/d?sslmode=require"),
            "postgres://u@h:5/d?sslmode=require");
  EXPECT_EQ(shown("postgres://:secret@h"), "postgres://@h");
  EXPECT_EQ(shown("postgres://h:5432,g:5433/d"), "postgres://h:5432,g:5433/d");
  EXPECT_EQ(shown("postgres:///d?password=secret&host=/run"), "postgres:///d?host=/run");
  EXPECT_EQ(shown("postgres:///d?host=/run&password=secret"), "postgres:///d?host=/run");
  EXPECT_EQ(shown("postgres:///d?password=secret"), "postgres:///d");
  for (const char* bad : {"", "x.db", "sqlite:", "sqlite:folder/", "mysql://x"}) {
    ASSERT_FALSE(store_url(bad)) << bad;
    EXPECT_EQ(store_url(bad).error().code, Code::usage) << bad;
  }
}

}  // namespace
}  // namespace ae::app
