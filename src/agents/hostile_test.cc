// Malicious agents files: rejected quickly, without recursion, and with little memory.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "agents/test_load.h"
#include "testing/test.h"

namespace ae::agents {
namespace {

using testing::diagnostics_as_text;
using testing::load_text;

std::string repeated(std::string_view text, std::size_t times) {
  std::string out;
  out.reserve(text.size() * times);
  for (std::size_t i = 0; i < times; ++i) out += text;
  return out;
}

// The diagnostics; fails after a minute (sanitizers on a busy machine are slow,
// quadratic time is slower).
std::string load_quickly(const std::string& text, std::string_view name = "a.yaml") {
  const auto begin = std::chrono::steady_clock::now();
  std::string diagnostics = diagnostics_as_text(load_text(text, name).diagnostics);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  return diagnostics;
}

const std::string kHead = "aetheris: 1\ntools: { t: { native: echo } }\nagents:\n  a:\n    plan:\n";

AE_TEST("agents/a file above 8 MiB is rejected unread") {
  EXPECT_EQ(load_quickly(std::string((8u << 20) + 1, 'x')),
            "1:1 plan_invalid : an agents file can have at most 8 MiB\n");
}

AE_TEST("agents/invalid UTF-8 and control characters are reported with their position") {
  EXPECT_EQ(load_quickly("aetheris: 1\n# \xC3\xA4 \xFF\n"),
            "2:5 plan_invalid : not UTF-8 at byte 17\n");
  EXPECT_EQ(load_quickly("\xFF\xFE"
                         "a\0"),
            "1:1 plan_invalid : not UTF-8 at byte 0\n");
  EXPECT_EQ(load_quickly("a: \xED\xA0\x80\n"), "1:4 plan_invalid : not UTF-8 at byte 3\n");
  EXPECT_EQ(load_quickly("a: \xC3"), "1:4 plan_invalid : not UTF-8 at byte 3\n");
  EXPECT_EQ(load_quickly(std::string("a: \xC3\xA4\0b", 7)),
            "1:5 plan_invalid : control characters are not allowed\n");
  EXPECT_EQ(load_quickly("a: b\x1b[31m\n"),
            "1:5 plan_invalid : control characters are not allowed\n");
}

AE_TEST("agents/indentation by tabs is reported with its position") {
  EXPECT_EQ(load_quickly("aetheris: 1\nagents:\n\ta: 1\n"),
            "3:1 plan_invalid : indent with spaces, not tabs\n");
  EXPECT_EQ(load_quickly("aetheris: 1\nagents:\n  a:\n  \tplan: []\n"),
            "4:3 plan_invalid : indent with spaces, not tabs\n");
}

AE_TEST("agents/exponential alias expansion is rejected at the first anchor") {
  std::string text = "a0: &a0 [lol, lol]\n";
  for (int i = 1; i < 30; ++i) {
    text += fmt::format("a{0}: &a{0} [*a{1}, *a{1}]\n", i, i - 1);
  }
  const std::string diagnostics = load_quickly(text);
  EXPECT_TRUE(diagnostics.starts_with("1:1 plan_invalid : `aetheris` is missing") ||
              diagnostics.starts_with("1:1 plan_invalid a"))
      << diagnostics.substr(0, 200);
  EXPECT_TRUE(diagnostics.find("1:5 plan_invalid : anchors (&name) are not supported") !=
              std::string::npos);
  EXPECT_TRUE(diagnostics.find("2:10 plan_invalid : aliases (*name) are not supported") !=
              std::string::npos);
}

AE_TEST_SLOW("agents/a map list of 100,001 items is rejected at its position") {
  const auto errors_of = [](std::size_t items) {
    return load_quickly(kHead + "      - { id: m, map: [" + repeated("1, ", items - 1) +
                        "1], do: { tool: t } }\n");
  };
  EXPECT_EQ(errors_of(100'000), "");
  const std::string diagnostics = errors_of(100'001);
  EXPECT_TRUE(diagnostics.starts_with("6:23 plan_invalid")) << diagnostics.substr(0, 300);
  EXPECT_TRUE(diagnostics.find("at most 100,000 items") != std::string::npos)
      << diagnostics.substr(0, 300);
}

AE_TEST("agents/nesting beyond 64 levels is rejected at any depth") {
  for (const std::string_view open : {"[", "{a: ", "{\"a\":", "- ", "? "}) {
    for (const std::size_t deep : {65u, 1'000u, 100'000u}) {
      const std::string diagnostics = load_quickly(repeated(open, deep));
      EXPECT_TRUE(diagnostics.find("can nest at most 64 levels deep") != std::string::npos ||
                  diagnostics.find("invalid YAML") != std::string::npos ||
                  diagnostics.find("a key must be") != std::string::npos)
          << open << deep << ": " << diagnostics.substr(0, 200);
    }
  }
  const auto nested = [](std::size_t deep) {
    return kHead + "      - { id: x, tool: t, args: { a: " + repeated("[", deep) + "1" +
           repeated("]", deep) + " } }\n";
  };
  // At six levels of nesting.
  EXPECT_EQ(load_quickly(nested(47)), "");
  EXPECT_TRUE(load_quickly(nested(58)).find("values can nest at most 48 levels deep here") !=
              std::string::npos);
  EXPECT_TRUE(load_quickly(nested(59)).find("can nest at most 64 levels deep") !=
              std::string::npos);
}

std::string chain(std::size_t nodes) {
  std::string text = kHead;
  for (std::size_t i = 0; i < nodes; ++i) {
    text += i == 0
                ? "      - { id: n0, tool: t }\n"
                : fmt::format(
                      "      - {{ id: n{}, tool: t, needs: [n{}], when: \"${{ .steps.n0 }}\" }}\n",
                      i, i - 1);
  }
  return text;
}

AE_TEST("agents/a plan of 10,001 nodes is rejected") {
  EXPECT_EQ(load_quickly(kHead + repeated("      - { id: x }\n", 10'001)),
            "6:7 plan_invalid agents.a.plan: a plan has at most 10000 nodes, this one has 10001\n");
  EXPECT_EQ(load_quickly(chain(500)), "");
}

// Mutates bytes and ranges of the documentation's files: replaces, swaps, cuts and duplicates.
std::string mutated(std::string text, std::mt19937& rng) {
  constexpr std::string_view kBytes = "{}[]:,\"'#&*!|>-?%@`$\\ \n\t~0aE.\x80\xff";
  const auto below = [&](std::size_t n) { return rng() % (n + 1); };
  for (std::size_t changes = 1 + below(3); changes > 0 && !text.empty(); --changes) {
    const std::size_t at = below(text.size() - 1);
    const std::size_t length = std::min(below(30), text.size() - at);
    switch (below(4)) {
      case 0:
        text[at] = kBytes[below(kBytes.size() - 1)];
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size() - 1), below(40)));
        break;
      case 3:
        text.insert(at, 1, kBytes[below(kBytes.size() - 1)]);
        break;
      default:
        text.replace(at, length, text.substr(below(text.size() - 1), length));
        break;
    }
  }
  return text;
}

void load_mutations(std::size_t count) {
  std::mt19937 rng(1);
  const std::vector<std::string> files = testing::files_of_the_documentation();
  ASSERT_FALSE(files.empty());
  std::size_t good = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string text = mutated(files[i % files.size()], rng);
    const auto once = load_text(text);
    EXPECT_EQ(diagnostics_as_text(once.diagnostics),
              diagnostics_as_text(load_text(text).diagnostics))
        << text;
    for (const Diagnostic& diagnostic : once.diagnostics)
      EXPECT_GT(diagnostic.line * diagnostic.column, 0u) << text;
    EXPECT_EQ(once.diagnostics.empty(), !once.file.agents.empty()) << text;
    if (once.diagnostics.empty()) ++good;
  }
  EXPECT_GT(good, 0u);
  EXPECT_LT(good, count);
}

AE_TEST("agents/a damaged file is loaded or rejected deterministically") { load_mutations(300); }

AE_TEST_SLOW("agents/many damaged files are loaded or rejected deterministically") {
  load_mutations(20'000);
}

AE_TEST_SLOW("agents/a chain of 10,000 nodes that all read the first is a valid plan") {
  EXPECT_EQ(load_quickly(chain(10'000)), "");
}

std::string cycle(int nodes) {
  std::string text = kHead;
  for (int i = 0; i < nodes; ++i) {
    text += fmt::format("      - {{ id: n{}, tool: t, needs: [n{}] }}\n", i, (i + 1) % nodes);
  }
  return load_quickly(text);
}

AE_TEST("agents/a long dependency cycle is reported by its first nodes") {
  EXPECT_EQ(cycle(500),
            "6:36 plan_invalid agents.a.plan[0].needs[0]: dependency cycle: "
            "n0 → n1 → n2 → n3 → n4 → n5 → n6 → n7 → n8 → n9 → n10 → n11 → … (500 nodes) → n0\n");
}

AE_TEST_SLOW("agents/a cycle of 10,000 nodes is found without recursion") {
  EXPECT_TRUE(cycle(10'000).find("… (10000 nodes) → n0") != std::string::npos);
}

AE_TEST_SLOW("agents/100,000 nodes on one line are rejected quickly") {
  const std::string line =
      "{aetheris: 1, agents: {a: {plan: [" + repeated("{id: x, tool: t}, ", 100'000) + "]}}}";
  EXPECT_EQ(load_quickly(line),
            "1:34 plan_invalid agents.a.plan: a plan has at most 10000 nodes, this one has "
            "100000\n");
}

AE_TEST_SLOW("agents/8 MiB of any content are loaded or rejected quickly") {
  const auto fill = [](std::string_view text, std::size_t bytes = (8u << 20) - 64) {
    return repeated(text, bytes / text.size());
  };
  const auto expect_diagnostic = [](const std::string& diagnostics, std::string_view words) {
    EXPECT_TRUE(diagnostics.find(words) != std::string::npos) << words << "\n"
                                                              << diagnostics.substr(0, 400);
  };
  expect_diagnostic(load_quickly(fmt::format("aetheris: 1\nagents: \"{}\"\n", fill("x"))),
                    "2:9 plan_invalid agents: must be a mapping");
  expect_diagnostic(load_quickly(fmt::format("[{}]", fill("0,"))), "at most 1,000,000 values");
  expect_diagnostic(load_quickly(fmt::format("[{}0]", fill("0,")), "a.json"),
                    "at most 1,000,000 values");
  expect_diagnostic(load_quickly(fill("a: 1\n")), "at most 1,000,000 values");
  expect_diagnostic(load_quickly(fill("a: 1\n", 4u << 20)), "duplicate key");
  expect_diagnostic(load_quickly(fill("? ")), "a key must be");
  expect_diagnostic(load_quickly(fmt::format("[{}]", fill("&a "))), "anchors");
  expect_diagnostic(load_quickly(fmt::format("[{}]", fill("*a ,"))), "aliases");
  expect_diagnostic(load_quickly("aetheris: 1\n" + fill("# x\n")), "`agents` is missing");
  expect_diagnostic(load_quickly(fill("\n")), "the file is empty");
  expect_diagnostic(load_quickly(fill("---\n")), "a second one starts");
  const auto command = [](const std::string& word) {
    return fmt::format("aetheris: 1\ntools:\n  t: {{ command: [x, \"{}\"] }}\n", word);
  };
  expect_diagnostic(load_quickly(command(fill("${ .input }"))), "at most 256 KiB");
  expect_diagnostic(load_quickly(command(fill("${ .input }", 200'000))), "not .input");
  expect_diagnostic(load_quickly(command(fill("${ + }", 200'000))), "the first 1,000 are shown");
}

AE_TEST("agents/at most 1,000 errors are reported") {
  std::string keys = "aetheris: 1\nagents:\n  a:\n";
  for (int i = 0; i < 1'200; ++i) keys += fmt::format("    input_schemb{}: 1\n", i);
  const auto loaded = load_text(keys);
  EXPECT_EQ(loaded.diagnostics.size(), 1'000u);
  EXPECT_TRUE(load_quickly(keys).find("the first 1,000 are shown") != std::string::npos);
}

AE_TEST_SLOW("agents/suggestions for unknown names stay cheap in a large file") {
  std::string text = "aetheris: 1\nagents:\n  a:\n    plan:\n";
  for (int i = 0; i < 10'000; ++i) {
    text += fmt::format(
        "      - {{ id: some_long_name_{0}, tool: t, needs: [some_lung_name_{0}] }}\n", 10'000 + i);
  }
  EXPECT_TRUE(load_quickly(text).find("did you mean some_long_name_10000?") != std::string::npos);
}

AE_TEST_SLOW("agents/a dense plan is checked quickly") {
  // Every node of the second half needs every node of the first, and reads its result.
  std::string all = "[";
  for (int i = 0; i < 800; ++i) all += fmt::format("a{},", i);
  all += "]";
  std::string text = kHead + "      - { id: root, tool: t }\n";
  for (int i = 0; i < 800; ++i) {
    text += fmt::format("      - {{ id: a{}, tool: t, needs: [root] }}\n", i);
  }
  for (int i = 0; i < 800; ++i) {
    text += fmt::format("      - {{ id: b{}, tool: t, needs: {}, when: \"${{ .steps.root }}\" }}\n",
                        i, all);
  }
  EXPECT_EQ(load_quickly(text), "");
}

}  // namespace
}  // namespace ae::agents
