#include "runtime/log_writer.h"

#include <utility>

#include "inspect/head.h"

namespace ae::runtime {

SealInput next_commit(World& world, const LogEnd& end, Instant now,
                      std::optional<AttemptId> attempt) {
  const std::uint64_t id_a = world.random.next();
  const std::uint64_t id_b = world.random.next();
  const std::uint64_t salt_a = world.random.next();
  const std::uint64_t salt_b = world.random.next();
  return {.job = end.job,
          .first_seq = end.seq + 1,
          .prev_hash = end.head,
          .first_id = uuid_v7(static_cast<std::uint64_t>(now.us / 1000), id_a, id_b),
          .created_at = now,
          .attempt_id = std::move(attempt),
          .salt_seed_a = salt_a,
          .salt_seed_b = salt_b};
}

void sign_head(const World& world, std::uint64_t seq, const Hash& head, Instant now,
               store::Batch& batch) {
  if (world.signer == nullptr) return;
  batch.signed_head = engine::signed_head(*world.signer, batch.job, seq, head, now);
}

}  // namespace ae::runtime
