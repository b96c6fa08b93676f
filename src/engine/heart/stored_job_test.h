// StoredJob: the stored form of a job's commits, and how the verifier reads it.
//
//   const auto log = StoredJob(job).opened(job.state.job).events;   // with salts, as in a store
//
// For tests only. Threads: one owner.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/heart/job_fixture_test.h"
#include "engine/state/retained_value.h"
#include "inspect/verify.h"
#include "log/seal.h"

namespace ae::engine::testing {

struct StoredJob {
  std::vector<std::string> commits;
  Hash head;

  explicit StoredJob(const JobFixture& job)
      : blinded(!std::get<JobCreated>(job.log.front().body).blind.is_null()) {
    std::size_t from = 0;
    for (const std::size_t to : job.commits) {
      std::vector<EventBody> drafts;
      for (std::size_t i = from; i < to; ++i) drafts.push_back(job.log[i].body);
      const Hash previous = head;
      const SealInput input{.job = job.state.job,
                            .first_seq = from + 1,
                            .prev_hash = previous,
                            .first_id = uuid_v7(from + 1, 1, 1),
                            .created_at = job.log[from].created_at,
                            .attempt_id = {},
                            .salt_seed_a = 1,
                            .salt_seed_b = from};
      auto sealed = seal(input, drafts);
      AE_CHECK(sealed.has_value(), "seal");
      for (const Blob& blob : sealed->blobs) blobs[to_hex(blob.hash)] = blob.bytes;
      commits.push_back(sealed->bytes);
      head = sealed->head;
      from = to;
    }
  }

  BlobSource source() const {
    return [this](const Hash& hash) -> Result<std::string> {
      auto blob = blobs.find(to_hex(hash));
      if (blob == blobs.end()) return fail(Code::log_corrupt, "a value is missing");
      return blob->second;
    };
  }

  VerifyInput opened(const JobId& job) const {
    VerifyInput input;
    input.job = job;
    Hash previous;
    for (const std::string& bytes : commits) {
      auto commit = open(job, bytes, previous, source());
      if (!commit) {
        input.open_error = commit.error();
        break;
      }
      previous = commit->head;
      for (Event& event : commit->events) input.events.push_back(std::move(event));
    }
    return input;
  }

  // The same job without the values that `drop` selects; for decisions `retained_value` remains.
  StoredJob& redact(const JobId& job, const RedactFilter& drop) {
    const RetainFilter left_over = [this](const Event& event, std::string_view field) {
      return retained_value(event, field, blinded);
    };
    Hash previous;
    for (std::string& bytes : commits) {
      auto left = ae::redact(job, bytes, previous, source(), drop, left_over);
      AE_CHECK(left.has_value(), left ? "" : left.error().message);
      bytes = *std::move(left);
      auto commit = open(job, bytes, previous, source());
      AE_CHECK(commit.has_value(), commit ? "" : commit.error().message);
      previous = commit->head;
    }
    return *this;
  }

  std::map<std::string, std::string> blobs;
  bool blinded;
};

}  // namespace ae::engine::testing
