// The vectors that every SDK shares: testdata/vectors/code.json.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>

#include "base/hash.h"
#include "base/ids.h"
#include "json/json.h"
#include "routines/native/positions.h"
#include "routines/native/values.h"
#include "testing/test.h"

namespace ae::routines {
namespace {

Value vectors() {
  const char* root = std::getenv("AETHERIS_ROOT");
  std::ifstream file(std::filesystem::path(root ? root : ".") / "testdata/vectors/code.json");
  auto parsed = parse_json(std::string(std::istreambuf_iterator<char>(file), {}));
  AE_CHECK(parsed.has_value(), parsed ? "" : parsed.error().message);
  return *std::move(parsed);
}

Result<std::string> given(Positions& positions, const Value& step) {
  const std::string scope(step.text("scope")), name(step.text("name"));
  const std::string_view act = step.text("act");
  if (act == "next") return positions.next(scope, name, step.text("key"));
  if (act == "loop") return positions.loop(scope, name);
  if (act == "open_scope") return positions.open_scope(scope, name);
  std::optional<std::uint64_t> number;
  if (const Value* found = step.find("number"))
    number = static_cast<std::uint64_t>(found->as_int());
  return positions.closed_scope(scope, name, number);
}

AE_TEST("vectors/positions") {
  const Value all = vectors();
  ASSERT_GE(all["positions"].size(), 9u);
  for (const Value& one : all["positions"].items()) {
    Positions positions;
    for (const Value& step : one["steps"].items()) {
      SCOPED_TRACE(canonical(step));
      if (step.text("act") == "forget_inside") {
        positions.forget_inside(step.text("scope"));
        continue;
      }
      const auto position = given(positions, step);
      EXPECT_EQ(position ? Value(*position) : Value(), step["gives"]);
      if (!position) EXPECT_EQ(position.error().code, Code::input_invalid);
    }
  }
}

AE_TEST("vectors/random numbers follow from the seed and the scope") {
  for (const Value& one : vectors()["random"].items()) {
    RandomNumbers numbers(*hash_from_hex(one.text("seed")), one.text("scope"));
    for (const Value& number : one["numbers"].items()) EXPECT_EQ(Value(numbers.next()), number);
  }
}

AE_TEST("vectors/hashes of arguments") {
  for (const Value& one : vectors()["arguments"].items()) {
    EXPECT_EQ(canonical(one["arguments"]), one.text("canonical"));
    EXPECT_EQ(blinded_hash(one.text("blind"), canonical(one["arguments"])).view(),
              one.text("hash"));
  }
}

}  // namespace
}  // namespace ae::routines
