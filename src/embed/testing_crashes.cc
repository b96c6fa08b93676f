// aetheris::testing::crash_everywhere.
#include <aetheris/testing.h>
#include <fmt/core.h>

#include <map>
#include <set>
#include <utility>

#include "embed/test_process.h"
#include "log/field_names.h"

namespace aetheris::testing {

// The runs of one job, each with a crash at another commit.
class Crashes {
 public:
  explicit Crashes(const std::function<Result<Job>()>& make) : make_(make) {}

  Result<CrashReport> run() {
    AETHERIS_ASSIGN(const Run first, run_with(std::nullopt));
    AETHERIS_ASSIGN(const Run second, run_with(std::nullopt));
    if (first.end != second.end) {
      return failed("crash_changed_result",
                    fmt::format("two runs without a crash ended with {} and {}",
                                first.end.to_json(), second.end.to_json()));
    }
    // Runs may have different numbers of commits, so the last point is the first that none reaches.
    bool has_crashed = true;
    for (std::uint64_t commit = 1; has_crashed; ++commit) {
      has_crashed = false;
      for (const bool is_after : {false, true}) {
        const std::string at =
            fmt::format("a crash {} commit {}", is_after ? "after" : "before", commit);
        AETHERIS_ASSIGN(const Run run, run_with(CrashPoint{commit, is_after}));
        AETHERIS_TRY(check(run, first.end, at));
        has_crashed = has_crashed || run.armed.has_crashed;
      }
    }
    return report_;
  }

 private:
  struct Run {
    Job job;
    Value end;  // {ae::field::result} or {ae::field::code}
    TestProcess::Armed armed;
  };

  static std::unexpected<Error> failed(std::string code, std::string message) {
    return std::unexpected(Error{std::move(code), std::move(message)});
  }

  // The first job shows which runtime it is.
  Result<Run> run_with(std::optional<CrashPoint> point) {
    if (process_ != nullptr) process_->arm(point);
    auto job = make_();
    if (!job) return std::unexpected(job.error());  // the runtime may have ended
    auto* const process = static_cast<TestProcess*>(job->test_);
    if (process_ != nullptr && process != process_) {
      return failed("input_invalid", "every job that `make` creates is one of the same runtime");
    }
    process_ = process;
    const auto result = job->result();
    const TestProcess::Armed armed = process_->armed();
    process_->arm(std::nullopt);
    Value end = result ? Value::object({{ae::field::result, *result}})
                       : Value::object({{ae::field::code, result.error().code}});
    return Run{*std::move(job), std::move(end), armed};
  }

  Status check(const Run& run, const Value& expected, const std::string& at) {
    AETHERIS_TRY(check_calls(run.job, at));
    if (!run.armed.has_crashed) return {};
    report_.crashes++;
    if (run.end == expected) return {};
    if (run.end.text(ae::field::code) == "invocation_in_doubt") {
      report_.in_doubt++;
      return {};
    }
    const auto result = run.job.result();
    return failed(
        "crash_changed_result",
        fmt::format("{}: the job ended with {}, without a crash with {}{}", at, run.end.to_json(),
                    expected.to_json(), result ? "" : ": " + result.error().message));
  }

  Status check_calls(const Job& job, const std::string& at) const {
    std::map<std::string, std::string> keys;  // by position
    std::set<std::string> performed;          // keys
    for (const CallRecord& call : process_->calls()) {
      if (call.job != job.id()) continue;
      const std::string& place = call.position.empty() ? call.tool : call.position;
      const std::string& key = keys.emplace(place, call.key).first->second;
      if (!call.position.empty() && key != call.key) {
        return failed("call_repeated", fmt::format("{}: the call at {} has the keys {} and {}", at,
                                                   place, key, call.key));
      }
      if (call.effect == Effect::at_most_once && performed.contains(call.key)) {
        return failed(
            "call_repeated",
            fmt::format("{}: the at_most_once call at {} was performed twice", at, place));
      }
      // A definite failure had no effect.
      if (!call.failure || call.failure->unknown) performed.insert(call.key);
    }
    return {};
  }

  const std::function<Result<Job>()>& make_;
  TestProcess* process_ = nullptr;
  CrashReport report_;
};

Result<CrashReport> crash_everywhere(const std::function<Result<Job>()>& make) {
  return Crashes(make).run();
}

}  // namespace aetheris::testing
