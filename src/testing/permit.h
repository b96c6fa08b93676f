// PermitForTests: permits for tests of tools, which have no ledger.
#pragma once

#include "tools/permit.h"

namespace ae::testing {

class PermitForTests {
 public:
  static tools::Permit make(InvocationId invocation, std::uint32_t try_no) {
    return tools::Permit(std::move(invocation), try_no);
  }
};

}  // namespace ae::testing
