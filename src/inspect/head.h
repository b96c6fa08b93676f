// Signed heads: a signed statement that at a given time the log of a job had a given number of
// events, and the last had a given hash.
//
// The chain shows that nothing inside a log was changed. Only a head signed while the log was
// complete shows that its end was not removed. Stored with the job as canonical JSON, {v, job,
// count, hash, time, key_id, signature}; the signed text is "aetheris.head.v1\n" and the same JSON
// without its signature. Stored: never changes.
// Threads: pure functions. See docs/verify.md and docs/decisions/0012-signed-heads.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/hash.h"
#include "base/ids.h"
#include "base/sign.h"
#include "base/time.h"

namespace ae::engine {

struct Head {
  JobId job;
  std::uint64_t count = 0;  // events
  Hash hash;                // of the last event
  Instant time;
  std::string key_id;
  std::string signature;  // 64 bytes

  bool signed_by(const PublicKey& key) const;
};

std::string signed_head(const SigningKey& key, const JobId& job, std::uint64_t count,
                        const Hash& hash, Instant time);
// Fails with log_corrupt if `text` is not a signed head.
Result<Head> head_from_text(std::string_view text);

}  // namespace ae::engine
