// Values of the conformance tests: sealed batches, blobs and fences to write, and the text of what
// a store returns.
//
// A text contains every field that a test compares; instants are microseconds since the loop began.
// Threads: functions of values.
#pragma once

#include <fmt/core.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/hash.h"
#include "store/store.h"
#include "testing/test_loop.h"

namespace ae::store::conformance {

inline constexpr Duration kLease = std::chrono::seconds(30);

inline SealedBatch sealed(std::string_view job, std::uint64_t first_seq, std::uint64_t count = 1,
                          std::string_view tag = "a") {
  SealedBatch s;
  s.first_seq = first_seq;
  s.last_seq = first_seq + count - 1;
  s.bytes = fmt::format("{}#{}..{} {}", job, first_seq, s.last_seq, tag);
  s.bytes += std::string("\0\xff", 2);  // arbitrary bytes
  s.head = sha256(s.bytes);
  return s;
}

inline Blob blob(std::string_view bytes) { return {sha256(bytes), std::string(bytes)}; }

inline Fence fence(std::string_view attempt, std::uint64_t epoch) {
  return {AttemptId(std::string(attempt)), epoch};
}

inline std::string show(const std::optional<Instant>& at) {
  return at ? std::to_string((*at - testing::TestLoop::kStart).count()) : "-";
}
inline std::string show(const std::optional<Fence>& f) {
  return f ? fmt::format("{}@{}", f->attempt.text, f->epoch) : "-";
}
inline std::string show(const std::optional<Lease>& l) {
  return l ? fmt::format("{} {} until {}", l->job.text, show(std::optional(l->fence)),
                         show(l->lease_until))
           : "-";
}
inline std::string show(const JobId& job) { return job.text; }
inline std::string show(const JobRow& r) {
  std::string labels;
  for (const auto& [key, value] : r.labels) labels += fmt::format("{}={},", key, value);
  std::string needs;
  for (const auto& capability : r.capabilities) needs.append(capability).append(",");
  return fmt::format(
      "{} agent={} status={} key={} labels={} priority={} needs={} queue={} created={} updated={} "
      "seq={} head={} not_before={} wake_at={} claim={} worker={} until={}{}{}",
      r.id.text, r.agent, r.status, r.idempotency_key, labels, r.priority, needs, r.queue,
      show(r.created_at), show(r.updated_at), r.last_seq, to_hex(r.head).substr(0, 8),
      show(r.not_before), show(r.wake_at), show(r.claim), r.claim_worker, show(r.lease_until),
      r.forked_from.value_or("").empty() ? "" : " fork of " + *r.forked_from,
      r.summary ? fmt::format(" summary={}/{}", r.summary->error, r.summary->body) : "");
}
inline std::string show(const LoadedJob& l) {
  std::string text = show(l.row);
  for (const auto& commit : l.commits) text += "\n  commit " + to_hex(commit);
  for (const auto& b : l.blobs)
    text += fmt::format("\n  blob {} {}", to_hex(b.hash).substr(0, 8), b.bytes);
  for (const auto& e : l.effects) {
    text += fmt::format("\n  effect {}/{} {}", e.invocation.text, e.try_no, e.record);
  }
  for (const auto& e : l.ledger) {
    text += fmt::format("\n  ledger {}/{} {} {}", e.invocation.text, e.try_no, e.state, e.record);
  }
  for (const auto& e : l.inbox) text += fmt::format("\n  inbox {} {}", e.id, e.request);
  return text;
}
inline std::string show(const LogWindow& w) {
  std::string text = show(w.row);
  for (const auto& commit : w.commits) text += "\n  commit " + to_hex(commit);
  for (const auto& b : w.blobs)
    text += fmt::format("\n  blob {} {}", to_hex(b.hash).substr(0, 8), b.bytes);
  if (w.preceding) text += "\n  preceding " + to_hex(*w.preceding);
  return text;
}
inline std::string show(const CommitResult& c) {
  return fmt::format(
      "seq {}{}{}{}{}", c.last_seq, c.is_duplicate ? " repeated" : "",
      c.existing ? " existing " + c.existing->text : "",
      c.existing_request ? " request " + to_hex(*c.existing_request).substr(0, 8) : "",
      c.lease ? " lease " + show(c.lease) : "");
}
template <class T>
std::string show(const std::vector<T>& items) {
  std::string text;
  for (const T& item : items) text += show(item) + "; ";
  return text;
}
template <class T>
std::string show(const Result<T>& result) {
  if (!result) return std::string(code_name(result.error().code));
  if constexpr (std::is_void_v<T>) {
    return "ok";
  } else {
    return show(*result);
  }
}

}  // namespace ae::store::conformance
