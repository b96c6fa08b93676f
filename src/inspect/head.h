// Signed heads: "at this time, the log of this job had so many events, and the last had this hash".
//
// The chain shows that nothing inside a log was changed; only a head that was signed while the log was whole shows that
// its end was not taken away. Stored beside the job as canonical JSON, {v, job, count, hash, time, key_id, signature};
// what is signed is "aetheris.head.v1\n" and the same JSON without its signature. Stored: never changes.
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
  Hash hash;                // of the last one
  Instant time;
  std::string key_id;
  std::string signature;  // 64 bytes

  bool signed_by(const PublicKey& key) const;
};

std::string signed_head(const SigningKey& key, const JobId& job, std::uint64_t count,
                        const Hash& hash, Instant time);
// Fails with log_corrupt when these are not the bytes of a signed head.
Result<Head> head_from_text(std::string_view text);

}  // namespace ae::engine
