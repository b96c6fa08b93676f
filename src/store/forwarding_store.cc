#include "store/forwarding_store.h"

#include <iterator>

namespace ae::store {

std::string_view to_text(Method method) {
  static constexpr std::string_view kText[] = {
      "commit", "put_inbox", "claim",    "claim_job", "heartbeat",   "redact",      "prune",
      "record", "due",       "next_due", "load",      "load_window", "inbox_entry", "query",
      "ended",  "audit_log", "census",   "count",     "wipe"};
  static_assert(std::size(kText) == kMethods);
  return kText[static_cast<std::size_t>(method)];
}

}  // namespace ae::store
