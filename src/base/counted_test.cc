#include "base/counted.h"

#include "testing/test.h"

namespace ae {
namespace {

AE_TEST("base/counted/the singular is used for one only") {
  EXPECT_EQ(counted(0, "event"), "0 events");
  EXPECT_EQ(counted(1, "event"), "1 event");
  EXPECT_EQ(counted(2, "event"), "2 events");
}

AE_TEST("base/counted/a noun in -y takes the plural -ies, except after a vowel") {
  EXPECT_EQ(counted(1, "try"), "1 try");
  EXPECT_EQ(counted(2, "retry"), "2 retries");
  EXPECT_EQ(counted(2, "entry"), "2 entries");
  EXPECT_EQ(counted(2, "day"), "2 days");
}

}  // namespace
}  // namespace ae
