// Permit: the right to perform one try of one invocation, once.
//
// Only the ledger creates permits, after the declaration of the call is durable (SPEC §4). A permit
// cannot be copied, and `consume` uses it up. Threads: a value, moved along with the call.
#pragma once

#include <cstdint>
#include <utility>

#include "base/error.h"
#include "base/ids.h"

namespace ae::runtime {
class Ledger;
}
namespace ae::testing {
class PermitForTests;
}

namespace ae::tools {

class Permit {
 public:
  Permit(Permit&& o) noexcept
      : invocation_(std::move(o.invocation_)),
        try_(o.try_),
        valid_(std::exchange(o.valid_, false)) {}
  Permit& operator=(Permit&&) = delete;
  Permit(const Permit&) = delete;
  Permit& operator=(const Permit&) = delete;

  // Consumes the permit, right before the external request. REQUIRES: not used before, issued for
  // this call.
  void consume(const InvocationId& invocation, std::uint32_t try_no) && {
    AE_CHECK(valid_ && invocation_ == invocation && try_ == try_no, invocation.text);
    valid_ = false;
  }

 private:
  friend class ::ae::runtime::Ledger;
  friend class ::ae::testing::PermitForTests;
  Permit(InvocationId invocation, std::uint32_t try_no)
      : invocation_(std::move(invocation)), try_(try_no), valid_(true) {}

  InvocationId invocation_;
  std::uint32_t try_;
  bool valid_;
};

}  // namespace ae::tools
