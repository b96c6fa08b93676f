// The bytes of a State: every field of every part of it, listed once for writing and reading.
//
// The structured bindings below list all fields, so a new field of one of these types is a compile
// error here. Each field is either written, or derived by `restore`.
#include "engine/state/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <concepts>
#include <type_traits>
#include <utility>

#include "engine/state/checkpoint_bytes.h"
#include "engine/state/indexes.h"
#include "json/json.h"

namespace ae::engine {
namespace {

constexpr std::string_view kVersion =
#include AE_FOLD_VERSION
    ;
constexpr std::size_t kHashSize = 32;

// Of this namespace, so that the functions below are found for them.
struct Writer : CheckpointWriter {
  using CheckpointWriter::CheckpointWriter;
};
struct Reader : CheckpointReader {
  using CheckpointReader::CheckpointReader;
};

// A part of the state: const to write it, mutable to read it.
template <class A, class T>
using Part = std::conditional_t<A::kReads, T, const T>;

template <class A, class... T>
void all(A& a, T&... fields);

// ---------------------------------------------------------------- the parts, with all their fields

template <class A>
void parts(A& a, Part<A, Failure>& x) {
  auto& [code, message] = x;
  all(a, code, message);
}

template <class A>
void parts(A& a, Part<A, ForkOrigin>& x) {
  auto& [hash, job_id, seq] = x;
  auto number = static_cast<std::uint64_t>(seq);
  all(a, hash, job_id, number);
  if constexpr (A::kReads) seq = static_cast<std::int64_t>(number);
}

template <class A>
void parts(A& a, Part<A, JobParent>& x) {
  auto& [command_id, detached, job_id, tree_depth] = x;
  all(a, command_id, detached, job_id, tree_depth);
}

template <class A>
void parts(A& a, Part<A, ChildInDoubt>& x) {
  auto& [idempotency_keys, job_id] = x;
  all(a, idempotency_keys, job_id);
}

template <class A>
void parts(A& a, Part<A, UndeliveredMessage>& x) {
  auto& [channel, correlation_key, message_id, signal_id] = x;
  all(a, channel, correlation_key, message_id, signal_id);
}

template <class A>
void parts(A& a, Part<A, Invocation>& x) {
  auto& [id, key, external_key, arguments, arguments_hash, tool, tool_version, attempt, worker,
         try_no, counted_tries, unsent_tries, absent_tries, last_late_try, erased, open,
         outcome_unknown, first_send_by, send_by, deadline, ended_deadline, taken_over_at,
         sent_opening, next_opening, checkable_from, ended_at, uncertain_tries, outcome, definite,
         retryable, charge, failure, retry_after, reserved, questions] = x;
  Failure error = x.error();
  all(a, id, key, external_key, arguments, erased, arguments_hash, tool, tool_version, try_no,
      counted_tries, outcome_unknown, unsent_tries, absent_tries, last_late_try, open, attempt,
      first_send_by, send_by, deadline, ended_deadline, taken_over_at, sent_opening, next_opening,
      checkable_from, ended_at, uncertain_tries, outcome, definite, retryable, error, retry_after,
      charge, reserved, questions, worker);
  if constexpr (A::kReads) failure = boxed(std::move(error));
}

template <class A>
void parts(A& a, Part<A, WorkerName>& x) {
  auto& [key, name] = x;
  all(a, key, name);
}

template <class A>
void parts(A& a, Part<A, Questions>& x) {
  auto& [input_required, answers, erased, rounds, number] = x;
  all(a, input_required, answers, erased, rounds, number);
}

template <class A>
void parts(A& a, Part<A, Reservation>& x) {
  auto& [input_tokens, output_tokens, cost_micros, model_calls, tool_calls] = x;
  all(a, input_tokens, output_tokens, cost_micros, model_calls, tool_calls);
}

template <class A>
void parts(A& a, Part<A, Usage>& x) {
  auto& [tokens, cost_micros, model_calls, tool_calls] = x;
  all(a, tokens, cost_micros, model_calls, tool_calls);
}

template <class A>
void parts(A& a, Part<A, Limits>& x) {
  auto& [tokens, cost_micros, model_calls, tool_calls, wall, soft] = x;
  all(a, tokens, cost_micros, model_calls, tool_calls, wall, soft);
}

template <class A>
void parts(A& a, Part<A, ExceededLimit>& x) {
  auto& [limit, requested] = x;
  all(a, limit, requested);
}

template <class A>
void parts(A& a, Part<A, Budget>& x) {
  auto& [limits, wall_from, wall_until, wall_passed, erased, spent, reserved, exceeded] = x;
  all(a, limits, wall_from, wall_until, wall_passed, erased, spent, reserved, exceeded);
}

template <class A>
void parts(A& a, Part<A, MapProgress>& x) {
  auto& [over, results, finished, erased, started, active, done, asking, failure] = x;
  all(a, over, results, finished, erased, started, active, done, asking, failure);
}

template <class A>
void parts(A& a, Part<A, LoopCall>& x) {
  auto& [id, tool, step, refused, edited] = x;
  all(a, id, tool, step, refused, edited);
}

template <class A>
void parts(A& a, Part<A, LoopTurn>& x) {
  auto& [step, chosen, calls, repair, message] = x;
  all(a, step, chosen, calls, repair, message);
}

template <class A>
void parts(A& a, Part<A, ContextStart>& x) {
  auto& [from, system, task, summary] = x;
  all(a, from, system, task, summary);
}

template <class A>
void parts(A& a, Part<A, LoopProgress>& x) {
  auto& [turns, first_turn, next, active, asking, conversation, message_count, failure,
         noticed_limits, repairs, waiting, ended, interrupted, exchanges, exchange_turn, context,
         context_tokens, summary] = x;
  all(a, turns, first_turn, next, active, asking, conversation, message_count, failure,
      noticed_limits, repairs, waiting, ended, interrupted, exchanges, exchange_turn, context,
      context_tokens, summary);
}

template <class A>
void parts(A& a, Part<A, WaitRules>& x) {
  auto& [type, continue_on_expire, continue_on_reject, accepts_data] = x;
  all(a, type, continue_on_expire, continue_on_reject, accepts_data);
}

template <class A>
void parts(A& a, Part<A, CallOptions>& x) {
  auto& [timeout, max_attempts, initial_backoff, max_backoff, on_in_doubt] = x;
  all(a, timeout, max_attempts, initial_backoff, max_backoff, on_in_doubt);
}

template <class A>
void parts(A& a, Part<A, CodeRequest>& x) {
  auto& [position, kind, delivered, arguments_hash, ended, folded, succeeded, wait, options] = x;
  all(a, position, kind, delivered, arguments_hash, ended, folded, succeeded, wait, options);
}

template <class A>
void parts(A& a, Part<A, OutcomeOrder::Place>& x) {
  auto& [position, step] = x;
  all(a, position, step);
}

template <class A>
void parts(A& a, Part<A, OutcomeOrder::Logged>& x) {
  auto& [number, step] = x;
  all(a, number, step);
}

template <class A>
void parts(A& a, Part<A, OutcomeOrder>& x) {
  OutcomeOrder::fields(x, [&](auto&... fields) { all(a, fields...); });
}

template <class A>
void parts(A& a, Part<A, CodeLoop>& x) {
  auto& [ended, delivered, position, result, failure, erased] = x;
  all(a, ended, delivered, position, result, failure, erased);
}

template <class A>
void parts(A& a, Part<A, CodeProgress>& x) {
  auto& [outcomes, open, scopes, loops, values, emitted, version, worker, tried, may_repeat] = x;
  all(a, outcomes, open, scopes, loops, values, emitted, version, worker, tried, may_repeat);
}

template <class A>
void parts(A& a, Part<A, Imported>& x) {
  auto& [tool, arguments_hash, arguments, invocation] = x;
  all(a, tool, arguments_hash, arguments, invocation);
}

template <class A>
void parts(A& a, Part<A, Step>& x) {
  auto& [id, node, start_plan, start_node, item, turn, nth, tool, of, of_try, probe, undo, changed,
         needs_left, role, phase, started, committed, barrier, branch, timed_out, rejected, skipped,
         erased, result_type, result, failure, call, approval, map, loop, code, request, imported,
         wait_key, not_before] = x;
  all(a, id, node, start_plan, start_node, item, turn, nth, tool, of, of_try, probe, undo, changed,
      needs_left, role, phase, started, committed, barrier, branch, timed_out, rejected, skipped,
      erased, result_type, result, failure, call, approval, map, loop, code, request, imported,
      wait_key, not_before);
}

template <class A>
void parts(A& a, Part<A, Approval>& x) {
  auto& [id, state, arguments, arguments_hash, tool, tool_version, schema_digest, expires_at, from,
         request_count, used, by, note, edited_from] = x;
  all(a, id, state, arguments, arguments_hash, tool, tool_version, schema_digest, expires_at, from,
      request_count, used, by, note, edited_from);
}

template <class A>
void parts(A& a, Part<A, Deviation>& x) {
  auto& [verdict, observed] = x;
  all(a, verdict, observed);
}

template <class A>
void parts(A& a, Part<A, Change>& x) {
  auto& [resource_type, resource_id, operation, version, etag, external_ref, tool, step, seq,
         attempt, verdict, escalated, accepted] = x;
  all(a, resource_type, resource_id, operation, version, etag, external_ref, tool, step, seq,
      attempt, verdict, escalated, accepted);
}

template <class A>
void parts(A& a, Part<A, BufferedMessage>& x) {
  auto& [id, by, wait_type, payload, erased, ends_thread] = x;
  all(a, id, by, wait_type, payload, erased, ends_thread);
}

template <class A>
void parts(A& a, Part<A, PendingPause>& x) {
  auto& [by, reason] = x;
  all(a, by, reason);
}

template <class A>
void parts(A& a, Part<A, Wait>& x) {
  auto& [step, type, due_at, expires_at, resolve, approval, question, child_cancelled, opened_at,
         reason, channel, opened_seq, prompt, data] = x;
  all(a, step, type, due_at, expires_at, resolve, approval, question, child_cancelled, opened_at,
      reason, channel, opened_seq, prompt, data);
}

template <class A>
void parts(A& a, Part<A, ClosedWait>& x) {
  auto& [type, outcome, payload, signal_id, approval, erased] = x;
  all(a, type, outcome, payload, signal_id, approval, erased);
}

template <class A>
void parts(A& a, Part<A, Ending>& x) {
  auto& [cancelled, code, message, node_id, by, compensate] = x;
  all(a, cancelled, code, message, node_id, by, compensate);
}

template <class A>
void parts(A& a, Part<A, ModelUsage>& x) {
  auto& [tries, withdrawn, input_tokens, output_tokens, total_tokens, cached_tokens,
         reasoning_tokens, cost_micros, unpriced_calls] = x;
  all(a, tries, withdrawn, input_tokens, output_tokens, total_tokens, cached_tokens,
      reasoning_tokens, cost_micros, unpriced_calls);
}

template <class A>
void parts(A& a, Part<A, NotedOutcome>& x) {
  auto& [resolution, by, at, result, note] = x;
  all(a, resolution, by, at, result, note);
}

template <class A>
void parts(A& a, Part<A, UnknownCall>& x) {
  auto& [step, node_id, tool, item, invocation, key, external_key, try_no, uncertain_tries, error,
         arguments, ended_at, checkable_at, compensates, given_up] = x;
  all(a, step, node_id, tool, item, invocation, key, external_key, try_no, uncertain_tries, error,
      arguments, ended_at, checkable_at, compensates, given_up);
}

template <class A>
void parts(A& a, Part<A, OpenRequests>& x) {
  auto& [calls, waits, questions] = x;
  all(a, calls, waits, questions);
}

// Stored in the order of the first version; `plan` before everything else.
template <class A>
void parts(A& a, Part<A, State>& x) {
  auto& [job, status, planned_by_model, deadline_fired, had_unknown_outcome, blind_erased,
         plan_number, plan, seq, updated_at, attempt, opened_at, steps, todo, startable, calling,
         routines, nodes_left, folded_steps, keeps_folded, open_tries, tries_started, lost_claims,
         process_deaths, deadline, not_before, pause_request, ending, undoable, to_confirm, waits,
         blind, input, job_root, budget, agent, labels, forked_from, parent, priority, queue,
         required_capabilities, execution_version, traceparent, tracestate, epoch, started_at,
         models, map_items, open_children, child_calls, child_counts, children_in_doubt,
         open_requests, closed_waits, pending_messages, early_signals, message_keys, signals,
         parked_reason, parked_until, parked_since, changes, escalated, undone, given_up, result,
         error, final_in_doubt, noted, earlier_unknown, undelivered] = x;
  all(a, job, agent, input, labels, job_root, forked_from, parent, priority, queue,
      required_capabilities, blind, blind_erased, execution_version, traceparent, tracestate,
      status, seq, updated_at, attempt, epoch, opened_at, started_at, lost_claims, process_deaths,
      deadline, not_before, deadline_fired, plan_number, planned_by_model, steps, todo, startable,
      calling, routines, open_tries, tries_started, had_unknown_outcome, nodes_left, folded_steps,
      map_items, open_children, child_calls, child_counts, children_in_doubt, waits, open_requests,
      closed_waits, pending_messages, early_signals, message_keys, pause_request, parked_reason,
      parked_until, parked_since, ending, undoable, undone, given_up, result, error, final_in_doubt,
      noted, earlier_unknown, undelivered, signals, models, budget, changes, to_confirm, escalated);
}

// ---------------------------------------------------------------- the types of fields

template <class T>
inline constexpr bool kIsInlineText = false;
template <std::size_t Size>
inline constexpr bool kIsInlineText<InlineText<Size>> = true;
template <class T>
inline constexpr bool kIsId = false;
template <class Tag, std::size_t Size>
inline constexpr bool kIsId<Id<Tag, Size>> = true;

enum Tag : std::uint8_t { kNull, kFalse, kTrue, kInteger, kDouble, kString, kArray, kObject };

void write(Writer& a, const Value& v) {
  switch (v.kind()) {
    case Value::Kind::null:
      return a.number(kNull);
    case Value::Kind::boolean:
      return a.number(v.as_bool() ? kTrue : kFalse);
    case Value::Kind::number:
      if (v.is_integer()) {
        a.number(kInteger);
        return a.number(zig_zag(v.as_int()));
      }
      a.number(kDouble);
      return a.fixed(std::bit_cast<std::uint64_t>(v.as_number()));
    case Value::Kind::string:
      a.number(kString);
      return a.text(v.as_string());
    case Value::Kind::array:
      a.number(kArray);
      a.number(v.size());
      for (const Value& item : v.items()) write(a, item);
      return;
    case Value::Kind::object:
      a.number(kObject);
      a.number(v.size());
      for (const Member& member : v.members()) {
        a.text(member.first);
        write(a, member.second);
      }
  }
}

Value take_value(Reader& a, std::size_t depth = 0) {
  if (depth > kJsonDepthMax) a.refuse();
  switch (a.number()) {
    case kNull:
      return {};
    case kFalse:
      return false;
    case kTrue:
      return true;
    case kInteger: {
      constexpr std::int64_t kMax = (std::int64_t{1} << 53) - 1;
      const std::int64_t n = un_zig_zag(a.number());
      if (n >= -kMax && n <= kMax) return n;
      break;
    }
    case kDouble: {
      const auto number = std::bit_cast<double>(a.fixed());
      if (std::isfinite(number)) return number;
      break;
    }
    case kString:
      return a.text();
    case kArray: {
      std::vector<Value> items(a.count());
      for (Value& item : items) item = take_value(a, depth + 1);
      return Value::array(std::move(items));
    }
    case kObject: {
      std::vector<Member> members(a.count());
      for (Member& member : members) {
        member.first = a.text();
        member.second = take_value(a, depth + 1);
      }
      for (std::size_t i = 1; i < members.size() && a.ok(); ++i) {
        if (!key_less(members[i - 1].first, members[i].first)) a.refuse();
      }
      if (!a.ok()) return {};
      return Value::object(std::move(members));
    }
    default:
      break;
  }
  a.refuse();
  return {};
}

template <class T>
void write(Writer& a, const T& x) {
  if constexpr (std::same_as<T, bool> || std::unsigned_integral<T>) {
    a.number(x);
  } else if constexpr (std::same_as<T, std::int64_t>) {
    a.number(zig_zag(x));
  } else if constexpr (std::is_enum_v<T>) {
    a.number(static_cast<std::uint64_t>(x));
  } else if constexpr (std::same_as<T, std::string>) {
    a.text(x);
  } else if constexpr (std::same_as<T, Hash>) {
    a.text(to_hex(x));
  } else if constexpr (kIsInlineText<T>) {
    a.text(x);
  } else if constexpr (kIsId<T>) {
    a.text(x.text);
  } else if constexpr (std::same_as<T, Instant>) {
    a.number(zig_zag(x.us));
  } else if constexpr (std::same_as<T, Duration>) {
    a.number(zig_zag(x.count()));
  } else {
    parts(a, x);
  }
}
void write(Writer& a, const std::vector<bool>& x) {
  a.number(x.size());
  for (const bool bit : x) a.number(bit);
}
template <class T>
void write(Writer& a, const std::vector<T>& x) {
  a.number(x.size());
  for (const T& item : x) write(a, item);
}
template <class T>
void write(Writer& a, const std::optional<T>& x) {
  a.number(x.has_value());
  if (x) write(a, *x);
}
template <class T>
void write(Writer& a, const Boxed<T>& x) {
  a.number(x.has_value());
  if (x) write(a, *x);
}
template <class T>
void write(Writer& a, const std::unique_ptr<T>& x) {
  a.number(x != nullptr);
  if (x) write(a, *x);
}
template <class T>
void write(Writer& a, const std::set<T>& x) {
  a.number(x.size());
  for (const T& item : x) write(a, item);
}
void write(Writer& a, const Steps& x) {
  a.number(x.size());
  for (const Step& step : x) write(a, step);
}
void write(Writer& a, const NumberSet& x) {
  a.number(x.size());
  for (const std::uint32_t number : x) a.number(number);
}
template <class T, class Less>
void write(Writer& a, const std::map<std::string, T, Less>& x) {
  a.number(x.size());
  for (const auto& [key, item] : x) {
    a.text(key);
    write(a, item);
  }
}
template <class T>
void write(Writer& a, const std::map<std::uint64_t, T>& x) {
  a.number(x.size());
  for (const auto& [key, item] : x) {
    a.number(key);
    write(a, item);
  }
}
template <class T>
void write(Writer& a, const std::deque<T>& x) {
  a.number(x.size());
  for (const T& item : x) write(a, item);
}

template <class T>
void read(Reader& a, T& x) {
  if constexpr (std::same_as<T, Value>) {
    x = take_value(a);
  } else if constexpr (std::same_as<T, bool>) {
    x = a.flag();
  } else if constexpr (std::same_as<T, std::int64_t>) {
    x = un_zig_zag(a.number());
  } else if constexpr (std::unsigned_integral<T> || std::is_enum_v<T>) {
    const std::uint64_t n = a.number();
    x = static_cast<T>(n);
    if (static_cast<std::uint64_t>(x) != n) a.refuse();
  } else if constexpr (std::same_as<T, std::string>) {
    x = a.text();
  } else if constexpr (std::same_as<T, Hash>) {
    const auto hash = hash_from_hex(a.text());
    if (hash) x = *hash;
    if (!hash) a.refuse();
  } else if constexpr (kIsInlineText<T>) {
    x = a.text();
  } else if constexpr (kIsId<T>) {
    x.text = a.text();
  } else if constexpr (std::same_as<T, Instant>) {
    x.us = un_zig_zag(a.number());
  } else if constexpr (std::same_as<T, Duration>) {
    x = Duration(un_zig_zag(a.number()));
  } else {
    parts(a, x);
  }
}
void read(Reader& a, std::vector<bool>& x) {
  x.resize(a.count());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = a.flag();
}
template <class T>
void read(Reader& a, std::vector<T>& x) {
  x.resize(a.count());
  for (T& item : x) read(a, item);
}
template <class T>
void read(Reader& a, std::optional<T>& x) {
  if (a.flag()) read(a, x.emplace());
}
template <class T>
void read(Reader& a, Boxed<T>& x) {
  if (a.flag()) read(a, x.emplace());
}
template <class T>
void read(Reader& a, std::unique_ptr<T>& x) {
  if (!a.flag()) return;
  x = std::make_unique<T>();
  read(a, *x);
}
template <class T>
void read(Reader& a, std::set<T>& x) {
  for (std::uint64_t n = a.count(); n > 0 && a.ok(); --n) {
    T item{};
    read(a, item);
    if (!x.empty() && !(*x.rbegin() < item)) a.refuse();
    x.insert(x.end(), std::move(item));
  }
}
void read(Reader& a, Steps& x) {
  for (std::uint64_t n = a.count(); n > 0 && a.ok(); --n) {
    Step step;
    read(a, step);
    x.add(std::move(step));
  }
}
void read(Reader& a, NumberSet& x) {
  for (std::uint64_t n = a.count(); n > 0 && a.ok(); --n) {
    std::uint32_t number = 0;
    read(a, number);
    if (!x.empty() && x.last() >= number) a.refuse();
    x.insert(number);
  }
}
template <class T, class Less>
void read(Reader& a, std::map<std::string, T, Less>& x) {
  for (std::uint64_t n = a.count(); n > 0 && a.ok(); --n) {
    std::string key = a.text();
    if (!x.empty() && !(x.rbegin()->first < key)) a.refuse();
    read(a, x[std::move(key)]);
  }
}
template <class T>
void read(Reader& a, std::map<std::uint64_t, T>& x) {
  for (std::uint64_t n = a.count(); n > 0 && a.ok(); --n) {
    const std::uint64_t key = a.number();
    if (!x.empty() && x.rbegin()->first >= key) a.refuse();
    read(a, x[key]);
  }
}
template <class T>
void read(Reader& a, std::deque<T>& x) {
  for (std::uint64_t n = a.count(); n > 0 && a.ok(); --n) read(a, x.emplace_back());
}

template <class A, class... T>
void all(A& a, T&... fields) {
  if constexpr (A::kReads) {
    (read(a, fields), ...);
  } else {
    (write(a, fields), ...);
  }
}

std::unexpected<Error> checkpoint_error() {
  return fail(Code::log_corrupt, "the checkpoint is damaged, or not of this job and event");
}

}  // namespace

std::string_view fold_version() { return kVersion; }

std::string checkpoint(const State& state, const Hash& head) {
  AE_CHECK(state.plan != nullptr, state.job.text);
  std::string out;
  put_text(kVersion, out);
  out.append(reinterpret_cast<const char*>(head.bytes.data()), kHashSize);
  Writer a(out);
  write(a, to_hex(state.plan->hash));
  write(a, state.plan->task_graph);
  write(a, state);
  const Hash sum = sha256(out);
  out.append(reinterpret_cast<const char*>(sum.bytes.data()), kHashSize);
  return out;
}

Result<RestoredCheckpoint> restore(const JobId& job, std::uint64_t seq, std::string_view bytes,
                                   const PlanSource& plans) {
  if (bytes.size() < kHashSize) return checkpoint_error();
  const std::string_view content = bytes.substr(0, bytes.size() - kHashSize);
  const Hash sum = sha256(content);
  const std::string_view stored = bytes.substr(content.size());
  if (stored != std::string_view(reinterpret_cast<const char*>(sum.bytes.data()), kHashSize)) {
    return checkpoint_error();
  }
  Reader a(content);
  if (a.text() != kVersion) {
    return fail(Code::needs_version, "another version of the fold made the checkpoint");
  }
  RestoredCheckpoint restored;
  const std::string_view head = a.bytes(kHashSize);
  for (std::size_t i = 0; i < head.size(); ++i) {
    restored.head.bytes[i] = static_cast<std::uint8_t>(head[i]);
  }
  const std::string plan_hash = a.text();
  const Value task_graph = take_value(a);
  State& state = restored.state;
  read(a, state);
  if (!a.at_end() || state.job != job || state.seq != seq) return checkpoint_error();
  AE_ASSIGN(state.plan, plans(task_graph, plan_hash));
  if (!has_valid_indexes(state)) return checkpoint_error();
  return restored;
}

}  // namespace ae::engine
