// The test macro itself.
#include "testing/test.h"

AE_TEST("testing/a test is named by its suite and a sentence") {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  EXPECT_STREQ(info->test_suite_name(), "testing");
  EXPECT_STREQ(info->name(), "a test is named by its suite and a sentence");
}

AE_TEST_SLOW("testing/a slow test runs only if slow tests are enabled") {
  EXPECT_TRUE(ae::testing::are_slow_tests_enabled());
}
