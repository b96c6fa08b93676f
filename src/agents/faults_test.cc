// Bad agents files as a table of text (faults.cases): every fault, with its place, code, path and suggestion.
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "agents/test_load.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

using testing::faults_as_text;
using testing::load_text;
using testing::read_file;

constexpr const char* kCases = "src/agents/faults.cases";

struct Case {
  std::string title, file, expected;
};

struct Cases {
  std::string head;  // what stands before the first
  std::vector<Case> all;
};

Cases read_cases() {
  Cases cases;
  std::istringstream in(read_file(kCases));
  bool expected = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("== ")) {
      cases.all.push_back({.title = line.substr(3), .file = {}, .expected = {}});
      expected = false;
    } else if (cases.all.empty()) {
      cases.head += line + "\n";
    } else if (line == "--") {
      expected = true;
    } else {
      (expected ? cases.all.back().expected : cases.all.back().file) += line + "\n";
    }
  }
  return cases;
}

AE_TEST("agents/every fault of a bad file is told at once, with its place") {
  const Cases cases = read_cases();
  ASSERT_GT(cases.all.size(), 20u);
  std::string updated = cases.head;
  for (const Case& c : cases.all) {
    const auto loaded = load_text(c.file);
    const std::string found = faults_as_text(loaded.faults);
    EXPECT_EQ(found, c.expected) << c.title;
    EXPECT_FALSE(loaded.faults.empty()) << c.title;
    EXPECT_TRUE(loaded.file.agents.empty()) << c.title;
    updated += "== " + c.title + "\n" + c.file + "--\n" + found;
  }
  if (std::getenv("AE_UPDATE_CASES") != nullptr) {
    std::ofstream(testing::root_folder() + "/" + kCases, std::ios::binary) << updated;
  }
}

}  // namespace
}  // namespace ae::agents
