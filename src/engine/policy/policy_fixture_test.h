// Shared by the tests of policies: a plan that buys something, under given rules.
#pragma once

#include <string>
#include <string_view>

#include "base/hash.h"
#include "engine/fixtures/job_fixture_test.h"
#include "engine/loop/loop_fixture_test.h"

namespace ae::engine::testing {

inline constexpr std::string_view kBuy =
    "[{'id':'a', 'kind':'tool', 'tool':'buy', 'args':{'n':'${ .input.n }'}}]";

inline std::string ruled(std::string_view rules, std::string_view more = "") {
  return "{'tools':{'buy':{'rules':[" + std::string(rules) + "]" + std::string(more) + "}}}";
}

inline JobFixture buys(std::string_view more, std::string_view input = "{'n':250}",
                       std::string_view nodes = kBuy) {
  return JobFixture(nodes, {.more = more, .input = input});
}

inline std::string hash_of(std::string_view arguments) {
  return blinded_hash(kBlind, canonical(json(arguments)));
}

inline JobFixture& edit(JobFixture& job, std::string_view id, std::string_view arguments,
                        std::string_view decision = "approve") {
  return job.send_request({.by = "ann",
                           .body = ApproveRequest{.approval_id = std::string(id),
                                                  .decision = std::string(decision),
                                                  .arguments = json(arguments)}});
}

inline constexpr std::string_view kLoopRules =
    "{'tools': {'model:main': {'effect': 'read', 'provider': 'openai'},"
    " 'refund': {'effect': 'idempotent', 'approval': 'required'},"
    " 'book': {}, 'exact': {},"
    " 'put': {'rules': [{'action': 'deny', 'when': '${ .args.v > 10 }', 'reason': 'too much'}]}}}";

}  // namespace ae::engine::testing
