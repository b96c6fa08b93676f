// check_changes: `changes` and `verify` of a tool, as the plan and the verifier need them.
//
// Threads: one owner.
#pragma once

#include <vector>

#include "agents/check_context.h"

namespace ae::agents {

struct CheckedChanges {
  std::vector<Member> policy;  // members of the tool's policy: changes, verify
  Value verify;                // the verifier (tools/verify/verify.h); null: none
};
CheckedChanges check_changes(CheckContext& check, const SourceNode& tool, bool reads);

}  // namespace ae::agents
