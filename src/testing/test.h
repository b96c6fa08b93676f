// AE_TEST: a test whose name is a path and a sentence.
//
//   AE_TEST("lease/a worker that lost its lease writes nothing more") {
//     EXPECT_EQ(...);
//   }
//
// The part before the first '/' is GoogleTest's suite, the rest is the test; the list of a module's
// tests reads like its specification. EXPECT_* and ASSERT_* work as usual, and so does
// --gtest_filter='*lost its lease*'.
//
// AE_TEST_SLOW is for a test over 100 ms: it is skipped, with a message, unless the environment has
// AETHERIS_SLOW_TESTS=1 (as in `./dev ci --full`).
//
// register_test is the same as a function, for a suite that runs against several drivers.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace ae::testing {

enum class TestSpeed { quick, slow };

inline bool are_slow_tests_enabled() {
  const char* value = std::getenv("AETHERIS_SLOW_TESTS");
  return value != nullptr && std::string_view(value) == "1";
}

class NamedTest final : public ::testing::Test {
 public:
  NamedTest(std::function<void()> body, TestSpeed speed) : body_(std::move(body)), speed_(speed) {}

 private:
  void TestBody() override {
    if (speed_ == TestSpeed::slow && !are_slow_tests_enabled()) {
      GTEST_SKIP() << "slow: set AETHERIS_SLOW_TESTS=1 to run it";
    }
    body_();
  }

  std::function<void()> body_;
  TestSpeed speed_;
};

// REQUIRES: before RUN_ALL_TESTS; name is "suite/sentence" and not registered yet.
inline bool register_test(std::string_view name, const char* file, int line, TestSpeed speed,
                          std::function<void()> body) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos || slash == 0 || slash + 1 == name.size()) {
    std::fprintf(stderr, "%s:%d: a test is named \"module/a sentence\", not \"%.*s\"\n", file, line,
                 static_cast<int>(name.size()), name.data());
    std::abort();
  }
  const std::string suite(name.substr(0, slash));
  const std::string sentence(name.substr(slash + 1));
  // The factory returns ::testing::Test, so that TEST() can use the same suite.
  ::testing::RegisterTest(
      suite.c_str(), sentence.c_str(), nullptr, nullptr, file, line,
      [body = std::move(body), speed]() -> ::testing::Test* { return new NamedTest(body, speed); });
  return true;
}

}  // namespace ae::testing

#define AE_TEST(name) AE_TEST_AS_(name, __COUNTER__, quick)
#define AE_TEST_SLOW(name) AE_TEST_AS_(name, __COUNTER__, slow)

// A number that is unique where several test files are compiled together.
#define AE_TEST_AS_(name, number, speed) AE_TEST_AT_(name, number, speed)
#define AE_TEST_AT_(name, number, speed)                                                         \
  static void ae_test_##number();                                                                \
  [[maybe_unused]] static const bool ae_test_registered_##number = ::ae::testing::register_test( \
      name, __FILE__, __LINE__, ::ae::testing::TestSpeed::speed, &ae_test_##number);             \
  static void ae_test_##number()
