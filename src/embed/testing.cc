// aetheris::testing::Testing and Job: what a test does, as requests to its runtime.
#include <aetheris/testing.h>
#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "api/target.h"
#include "base/time.h"
#include "log/field_names.h"

namespace aetheris::testing {
namespace {

constexpr std::chrono::milliseconds kPollMin{2}, kPollMax{50};
constexpr std::size_t kAdvancesMax = 100'000;  // of the clock, for one result

std::unexpected<Error> failed(std::string code, std::string message) {
  return std::unexpected(Error{std::move(code), std::move(message)});
}

bool has_ended(const Value& view) {
  const std::string& status = view.text("status");
  return status == "completed" || status == "failed" || status == "cancelled";
}

// What is known about a job that does not do what the test expects.
std::string described(const Value& view) {
  constexpr std::array kNames{"status",         "parked",         "exception",        "divergence",
                              ae::field::error, ae::field::waits, ae::field::in_doubt};
  Value known = Value::Object();
  for (const char* name : kNames) {
    if (!view[name].is_null() && view[name] != Value(Value::Array())) {
      known = known.with(name, view[name]);
    }
  }
  return known.to_json();
}

// The first value of `find`; nullopt: kPatience is over.
template <class T>
Result<std::optional<T>> polled(const std::function<Result<std::optional<T>>()>& find) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  for (auto delay = kPollMin;; delay = std::min(2 * delay, kPollMax)) {
    AETHERIS_ASSIGN(std::optional<T> found, find());
    if (found || std::chrono::steady_clock::now() > end) return found;
    std::this_thread::sleep_for(delay);
  }
}

std::string job_path(const Job& job, const std::string& what = "") {
  ae::api::Path path{"api", "jobs", job.id()};
  if (!what.empty()) path.push_back(what);
  return ae::api::target(path, {});
}

}  // namespace

Result<Value> Job::view() const { return test_->request("GET", job_path(*this)); }

Result<std::string> Job::status() const {
  AETHERIS_ASSIGN(const Value job, view());
  return job.text("status");
}

Result<Value> Job::events() const {
  AETHERIS_ASSIGN(const Value page,
                  test_->request("GET", job_path(*this, "events") + "?limit=1000000"));
  return page["events"];
}

Result<Value> Job::result() const {
  for (std::size_t i = 0; i < kAdvancesMax; ++i) {
    AETHERIS_ASSIGN(const Value job, view());
    const std::string& status = job.text("status");
    if (status == "completed") return job[ae::field::result];
    if (status == "failed")
      return failed(job[ae::field::error].text(ae::field::code),
                    job[ae::field::error].text("message"));
    if (status == "cancelled") return failed(status, fmt::format("job {} was cancelled", id_));
    if (status == "parked") {
      return failed(job["parked"].text(ae::field::reason),
                    fmt::format("job {} is parked: {}", id_, described(job)));
    }
    AETHERIS_ASSIGN(const bool advanced, test_->skip_to_next());
    if (advanced) continue;
    AETHERIS_ASSIGN(const Value again, view());  // it may have continued meanwhile
    if (status == "waiting" && again.text("status") == status) {
      return failed("waiting",
                    fmt::format("job {} waits for an operator or another process, and no time "
                                "would help: {}",
                                id_, described(again)));
    }
  }
  return failed("timeout", fmt::format("job {} does not end", id_));
}

Result<Job> Testing::job(std::string_view agent, const Value& input, JobOptions options) {
  if (options.id.empty()) options.id = fmt::format("{}-{}", agent, ++jobs_);
  Value body =
      Value::object({{ae::field::agent, agent}, {"id", options.id}, {ae::field::input, input}});
  if (!options.idempotency_key.empty()) {
    body = body.with(ae::field::idempotency_key, options.idempotency_key);
  }
  Value::Object labels;
  for (const auto& [name, value] : options.labels) labels.emplace(name, value);
  if (!labels.empty()) body = body.with(ae::field::labels, std::move(labels));
  AETHERIS_ASSIGN(const Value created, request("POST", "/api/jobs", body));
  return Job(*this, created.text("id"));
}

Result<Value> Testing::until(const Job& job, std::string_view status) {
  return until(job, [&](const Value& view) { return view.text("status") == status; });
}

Result<Value> Testing::until(const Job& job,
                             const std::function<bool(const Value& view)>& condition) {
  Value last;
  bool is_over = false;
  AETHERIS_ASSIGN(const std::optional<Value> found,
                  polled<Value>([&]() -> Result<std::optional<Value>> {
                    AETHERIS_ASSIGN(last, job.view());
                    is_over = has_ended(last);
                    if (condition(last) || is_over) return last;
                    return std::nullopt;
                  }));
  if (found && (!is_over || condition(*found))) return *found;
  return failed("timeout", fmt::format("job {} did not become as it was awaited: {}", job.id(),
                                       described(last)));
}

Result<std::string> Testing::open_request(const Job& job) {
  Value last;
  AETHERIS_ASSIGN(
      const std::optional<std::string> found,
      polled<std::string>([&]() -> Result<std::optional<std::string>> {
        AETHERIS_ASSIGN(last, job.view());
        AETHERIS_ASSIGN(const Value page,
                        request("GET", ae::api::target({"api", "requests"}, {{"job", job.id()}})));
        const Value& requests = page["requests"];
        if (requests.size() > 1) {
          return failed("input_invalid", fmt::format("job {} has {} open requests; name one",
                                                     job.id(), requests.size()));
        }
        if (requests.size() == 1) return requests[std::size_t{0}].text("id");
        if (has_ended(last)) return std::string();
        return std::nullopt;
      }));
  if (found && !found->empty()) return *found;
  return failed("not_found",
                fmt::format("job {} has no open request: {}", job.id(), described(last)));
}

Status Testing::decide(const Job& job, std::string_view decision, const Answer& answer) {
  std::string id = answer.request;
  if (id.empty()) {
    AETHERIS_ASSIGN(id, open_request(job));
  }
  Value body = Value::object({{"decision", decision}});
  if (!answer.note.empty()) body = body.with(ae::field::note, answer.note);
  if (!answer.arguments.is_null()) body = body.with(ae::field::arguments, answer.arguments);
  AETHERIS_TRY(request("POST", ae::api::target({"api", "approvals", id}, {}), body));
  return {};
}

Status Testing::approve(const Job& job, const Answer& answer) {
  return decide(job, "approve", answer);
}

Status Testing::reject(const Job& job, const Answer& answer) {
  return decide(job, "reject", answer);
}

Status Testing::signal(const Job& job, std::string_view key, const Value& payload) {
  AETHERIS_TRY(request("POST", job_path(job, "signal"),
                       Value::object({{"buffer", true},
                                      {ae::field::correlation_key, key},
                                      {ae::field::message_id, fmt::format("test-{}", ++messages_)},
                                      {ae::field::payload, payload}})));
  return {};
}

Status Testing::message(const Job& job, std::string_view channel, const Value& payload) {
  AETHERIS_TRY(request("POST", job_path(job, "message"),
                       Value::object({{ae::field::channel, channel},
                                      {ae::field::message_id, fmt::format("test-{}", ++messages_)},
                                      {ae::field::payload, payload}})));
  return {};
}

Status Testing::cancel(const Job& job) {
  AETHERIS_TRY(request("POST", job_path(job, "cancel"), Value::Object()));
  return {};
}

// The runtime may end meanwhile: then the rest of the time is skipped in the next one.
Status Testing::skip(Duration duration) {
  if (duration < Duration(0)) return failed("input_invalid", "a duration is not negative");
  AETHERIS_ASSIGN(const Instant begin, now());
  const Instant end = begin + duration;
  for (Instant at = begin; at < end;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - at);
    AETHERIS_TRY(advance_clock(Value::object({{"advance", fmt::format("{}ms", left.count())}})));
    AETHERIS_ASSIGN(at, now());
  }
  return {};
}

Result<bool> Testing::skip_to_next() {
  AETHERIS_ASSIGN(const Value answer, advance_clock(Value::object({{"to_next", true}})));
  return answer["advanced"].as_bool();
}

Result<Instant> Testing::now() {
  AETHERIS_ASSIGN(const Value answer, advance_clock(Value::Object()));
  const auto instant = ae::instant_from_text(answer.text("now"));
  if (!instant) return failed("input_invalid", instant.error().message);
  return Instant(Duration(instant->us));
}

std::vector<CallRecord> Testing::calls(std::string_view name) const {
  std::vector<CallRecord> calls = all_calls();
  std::erase_if(calls, [&](const CallRecord& call) {
    return !name.empty() && call.tool != name && call.position != name;
  });
  return calls;
}

}  // namespace aetheris::testing
