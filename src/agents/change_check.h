// `changes` and `verify` of a tool, as the plan and the verifier get them.
//
// Threads: one owner.
#pragma once

#include <vector>

#include "agents/check_context.h"

namespace ae::agents {

struct CheckedChanges {
  std::vector<Member> policy;  // members of the tool's policy: changes, verify
  Value verify;  // the verifier's definition (tools/verify/verify.h); null: there is none
};
CheckedChanges check_changes(CheckContext& check, const SourceNode& tool, bool reads);

}  // namespace ae::agents
