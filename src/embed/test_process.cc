#include "embed/test_process.h"

#include <utility>

#include "embed/convert.h"

namespace aetheris::testing {
namespace {

constexpr std::string_view kRunPrefix = "run:";
constexpr char kStore[] = "memory:?clock=virtual";

Effect effect_of(std::string_view text) {
  if (text == "read") return Effect::read;
  return text == "idempotent" ? Effect::idempotent : Effect::at_most_once;
}

}  // namespace

TestProcess::~TestProcess() { runtime_.reset(); }

Status TestProcess::begin() {
  if (!options_.models.empty()) {
    models_.emplace(options_.models,
                    ModelServer::Callbacks{
                        .on_call = [this](CallRecord call) { return calls_->add(std::move(call)); },
                        .on_end = [calls = calls_](std::size_t index,
                                                   const auto& end) { calls->end(index, end); }});
    AETHERIS_TRY(models_->begin());
  }
  runtime_.emplace(
      settings(),
      Embedded::Hooks{
          .adapt =
              [this](ae::app::InstanceOptions& options) {
                options.function_observer = [this](const auto& call) { return observe(call); };
                options.make_store = [this](auto& loop) { return make_store(loop); };
              },
          .on_open =
              [this](ae::app::Instance& instance) {
                clock_control_.emplace(ae::app::ClockControl::Parts{.loop = instance.loop(),
                                                                    .steady = steady_,
                                                                    .clock = virtual_clock_,
                                                                    .store = instance.store(),
                                                                    .runtime = instance.runtime()});
              },
          .on_close = [this] { clock_control_.reset(); },
          .models = models_ ? models_->definitions() : Value()});
  return runtime_->begin();
}

// The functions of the test, with the definitions of the tools in whose place they are.
Settings TestProcess::settings() {
  Settings settings{
      .store = kStore, .agents_file = options_.agents_file, .agents = options_.agents};
  for (const auto& [name, function] : options_.tools) {
    Tool tool{.name = name, .effect = Effect::idempotent, .function = function};
    for (const Tool& known : options_.tools_of) {
      if (known.name != name) continue;
      tool.effect = known.effect;
      tool.options = known.options;
    }
    effects_.emplace(name, tool.effect);
    settings.tools.push_back(std::move(tool));
  }
  return settings;
}

std::unique_ptr<ae::store::Store> TestProcess::make_store(ae::async::Loop& loop) {
  memory_ = std::make_unique<ae::store::MemoryStore>(loop, virtual_clock_, disk_);
  return std::make_unique<ae::store::FaultyStore>(
      loop, *memory_,
      ae::store::FaultyStore::Options{
          .script = [this](const ae::store::Call& call) { return fault_of(call); },
          .on_crash = [this] { runtime_->restart(); }});
}

ae::store::Fault TestProcess::fault_of(const ae::store::Call& call) {
  using ae::store::Fault;
  if (!call.is_leased) return Fault::none;
  const std::lock_guard lock(mutex_);
  armed_.commits++;
  if (!point_ || armed_.has_crashed || armed_.commits != point_->commit) return Fault::none;
  armed_.has_crashed = true;
  return point_->is_after ? Fault::crash_after : Fault::crash_before;
}

void TestProcess::arm(std::optional<CrashPoint> point) {
  const std::lock_guard lock(mutex_);
  point_ = point;
  armed_ = {};
}

TestProcess::Armed TestProcess::armed() const {
  const std::lock_guard lock(mutex_);
  return armed_;
}

Result<Value> TestProcess::request(std::string_view method, std::string_view path,
                                   const Value& body) {
  return runtime_->request(method, path, body);
}

Result<Value> TestProcess::advance_clock(const Value& body) {
  auto converted = ae::embed::to_internal(body);
  if (!converted) return ae::embed::failed(converted);
  // A request that a crash has interrupted is repeated: then the rest of the time is left.
  std::optional<ae::Instant> until;
  return runtime_->call([&](ae::app::Instance&, Embedded::Done done) {
    ae::Value request = *converted;
    if (const auto by = ae::duration_from_text(request.text("advance")); by) {
      if (!until) until = virtual_clock_.now() + *by;
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(
          std::max(ae::Duration(0), *until - virtual_clock_.now()));
      request = request.with("advance", ae::Value(ae::to_text(left)));
    }
    clock_control_->advance(request, [done = std::move(done)](auto answer) mutable {
      if (answer) return done(ae::embed::to_public(*answer));
      done(ae::embed::failed(answer));
    });
  });
}

std::vector<CallRecord> CallLog::all() const {
  const std::lock_guard lock(mutex_);
  return calls_;
}

std::size_t CallLog::add(CallRecord call) {
  const std::lock_guard lock(mutex_);
  calls_.push_back(std::move(call));
  return calls_.size() - 1;
}

void CallLog::end(std::size_t index, const std::expected<Value, Failure>& end) {
  const std::lock_guard lock(mutex_);
  if (end) calls_[index].result = *end;
  if (!end) calls_[index].failure = end.error();
}

ae::routines::FunctionEnded TestProcess::observe(const ae::tools::Call& call) {
  const bool is_run = call.tool.starts_with(kRunPrefix);
  const auto known = effects_.find(call.tool);
  CallRecord record{.tool = call.tool,
                    .position = call.position,
                    .job = call.job.text,
                    .arguments = ae::embed::to_public(call.args),
                    .key = call.external_key.text,
                    .try_no = call.try_no};
  if (is_run) record.effect = effect_of(call.tool.substr(kRunPrefix.size()));
  if (known != effects_.end()) record.effect = known->second;
  return [calls = calls_, index = calls_->add(std::move(record))](const auto& end) {
    if (end) return calls->end(index, ae::embed::to_public(*end));
    calls->end(index, std::unexpected(Failure{.code = end.error().code,
                                              .message = end.error().message,
                                              .unknown = end.error().unknown,
                                              .retryable = end.error().retryable}));
  };
}

Result<std::unique_ptr<Testing>> start(Options options) {
  auto test = std::make_unique<TestProcess>(std::move(options));
  AETHERIS_TRY(test->begin());
  return test;
}

}  // namespace aetheris::testing
