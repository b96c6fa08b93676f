// CodeCheck: does code still fit the log of a job? A routine replays the record of the job, and is
// dropped at the frontier: it is given no call and no new outcome, and nothing is written.
//
//   continues    it made all recorded requests again; if the log has the end of the code, it ended so
//   diverges     it made another request, or ended otherwise
//   fails        it threw after the recorded requests, or makes a request that the job cannot take
//   not_judged   it could not be started, did not settle in time, or values of its record are erased
//
// Threads: the loop's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "async/alive.h"
#include "async/loop.h"
#include "base/error.h"
#include "inspect/recorded_code.h"
#include "json/value.h"
#include "log/event.h"
#include "routines/routine.h"

namespace ae::runtime {

enum class CodeVerdict : std::uint8_t { continues, diverges, fails, not_judged };
std::string_view to_text(CodeVerdict verdict);

struct CodeFinding {
  CodeVerdict verdict = CodeVerdict::not_judged;
  std::optional<std::string> version;  // that was started; "" = it has none
  std::size_t requests = 0;            // recorded ones, without those inside of ended scopes
  bool compares_arguments = true;      // false: the blind of the job is erased
  Value divergence;                    // as engine::divergence_view
  Value exception;                     // of code that fails: {name, message, stack?}
  std::string reason;                  // of `fails` without an exception, and of `not_judged`
};

class CodeCheck final : private routines::RoutineClient {
 public:
  struct Parts {
    async::Loop& loop;  // borrowed, as the next
    routines::RoutineProvider& provider;
    engine::RecordedCode recorded;
    std::vector<Event> events;                // of the job
    std::optional<std::string> version = {};  // nullopt: the newest that is offered
    Duration timeout = std::chrono::seconds(60);
  };
  // `done` is not called if this is destroyed before.
  CodeCheck(Parts parts, async::Done<CodeFinding> done);
  ~CodeCheck() override;
  CodeCheck(const CodeCheck&) = delete;
  CodeCheck& operator=(const CodeCheck&) = delete;

 private:
  void start();
  bool choose_version();
  bool has_erased_values(const engine::CodeRecord& record) const;
  void finish(CodeVerdict verdict, std::string reason = {});
  bool ends_as_recorded(const engine::RoutineEnd* end) const;
  void diverge_at_end(Value found);
  void on_advance(std::uint32_t node, routines::Advance advance) override;
  void on_diverged(std::uint32_t node, Divergence divergence) override;
  void on_lost(std::uint32_t node, Error why) override;
  void on_refused(std::uint32_t node, Error why) override;

  Parts parts_;
  async::Done<CodeFinding> done_;
  CodeFinding finding_;
  bool is_finished_ = false, has_advanced_ = false;
  std::unique_ptr<routines::Routine> routine_;
  std::optional<async::TimerId> timer_;
  async::Alive alive_;
};

}  // namespace ae::runtime
