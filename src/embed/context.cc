// aetheris::Context and Pending: the public form of a routine's context.
#include "embed/context.h"

#include <utility>

#include <aetheris/aetheris.h>
#include "embed/convert.h"
#include "routines/native/routine_end.h"

namespace ae::embed {

class PublicCall final : public aetheris::Call {
 public:
  explicit PublicCall(routines::FunctionCall& call) : call_(call) {}
  std::string_view key() const override { return call_.key(); }
  std::uint32_t try_no() const override { return call_.try_no(); }
  std::stop_token stop() const override { return call_.stop(); }
  void progress(const aetheris::Value& report) override {
    if (auto converted = to_internal(report)) call_.progress(*std::move(converted));
  }

 private:
  routines::FunctionCall& call_;
};

routines::Function to_internal(aetheris::Function function) {
  return [function = std::move(function)](
             const Value& args,
             routines::FunctionCall& call) -> std::expected<Value, routines::FunctionFailure> {
    PublicCall public_call(call);
    const auto result = function(to_public(args), public_call);
    if (!result) {
      const aetheris::Failure& failure = result.error();
      return std::unexpected(routines::FunctionFailure{.code = failure.code,
                                                       .message = failure.message,
                                                       .retryable = failure.retryable,
                                                       .unknown = failure.unknown});
    }
    auto converted = to_internal(*result);
    if (converted) return *std::move(converted);
    // It has taken effect; what it returned cannot be recorded.
    return std::unexpected(routines::FunctionFailure{
        .code = "tool_output_invalid", .message = converted.error().message, .unknown = true});
  };
}

Error to_internal(const aetheris::Error& error) {
  return routines::error_of({error.code, error.message});
}

aetheris::Error to_public_failure(const Error& error) {
  const engine::Failure failure = routines::failure_of(error);
  return {failure.code, failure.message};
}

}  // namespace ae::embed

namespace aetheris {
namespace {

using ae::embed::to_public_failure;

Result<Value> to_public_result(const ae::Result<ae::Value>& result) {
  if (!result) return std::unexpected(to_public_failure(result.error()));
  return ae::embed::to_public(*result);
}

Status to_public_status(const ae::Status& status) {
  if (!status) return std::unexpected(to_public_failure(status.error()));
  return {};
}

ae::routines::RequestOptions to_internal(const Options& options) {
  ae::routines::RequestOptions internal{.key = options.key};
  internal.call = {.timeout = options.timeout,
                   .max_attempts = options.retry.max_attempts,
                   .initial_backoff = options.retry.initial_backoff,
                   .max_backoff = options.retry.max_backoff};
  if (options.on_in_doubt) {
    internal.call.on_in_doubt = static_cast<ae::engine::OnInDoubt>(*options.on_in_doubt);
  }
  return internal;
}

ae::routines::WaitSpec wait_spec(const WaitOptions& options, ae::engine::WaitType type) {
  return {.type = type,
          .key = options.key,
          .expires = options.expires,
          .accepts_data = options.accepts_data};
}

ae::Instant to_internal(Instant instant) { return {instant.time_since_epoch().count()}; }

ae::engine::EffectClass to_internal(Effect effect) {
  return static_cast<ae::engine::EffectClass>(effect);
}

const ae::routines::Pending& pending_of(const std::shared_ptr<void>& request) {
  return *static_cast<const ae::routines::Pending*>(request.get());
}

}  // namespace

class ContextFactory {
 public:
  static ae::routines::Context& of(void* context) {
    return *static_cast<ae::routines::Context*>(context);
  }
  static Context make(ae::routines::Context& context) { return Context(&context); }
};

namespace {

ae::routines::Context& internal(void* context) { return ContextFactory::of(context); }

// Converts the arguments, or returns the error.
template <class Call>
Result<Value> with_value(const Value& value, Call call) {
  auto converted = ae::embed::to_internal(value);
  if (!converted) return std::unexpected(ae::embed::to_public(converted.error()));
  return to_public_result(call(*std::move(converted)));
}

}  // namespace

Result<Value> Pending::get() const {
  if (!request_) return std::unexpected(Error{"input_invalid", "there is no request"});
  return to_public_result(pending_of(request_).get());
}

void Pending::cancel() const {
  if (request_) pending_of(request_).cancel();
}

Result<Value> Context::run(std::string_view name, Effect effect, const Value& args,
                           Function function, const Options& options) {
  return with_value(args, [&](ae::Value converted) {
    return internal(context_).run(name, to_internal(effect), std::move(converted),
                                  ae::embed::to_internal(std::move(function)),
                                  to_internal(options));
  });
}

Result<Value> Context::call(std::string_view tool, const Value& args, const Options& options) {
  return with_value(args, [&](ae::Value converted) {
    return internal(context_).call(tool, std::move(converted), to_internal(options));
  });
}

Result<Value> Context::generate(std::string_view model, const Value& request,
                                const Options& options) {
  return with_value(request, [&](ae::Value converted) {
    return internal(context_).generate(model, std::move(converted), to_internal(options));
  });
}

Status Context::sleep(Duration duration, const Options& options) {
  return to_public_status(internal(context_).sleep(duration, to_internal(options)));
}

Status Context::until(Instant instant, const Options& options) {
  return to_public_status(internal(context_).until(to_internal(instant), to_internal(options)));
}

Result<Value> Context::signal(const WaitOptions& options) {
  return to_public_result(
      internal(context_).wait(wait_spec(options, ae::engine::WaitType::signal)));
}

Result<Value> Context::receive(std::string_view channel, std::optional<Duration> expires,
                               const Options& options) {
  return to_public_result(internal(context_).receive(channel, expires, to_internal(options)));
}

Result<Value> Context::approval(std::string_view question, const WaitOptions& options) {
  return with_value(options.data, [&](ae::Value data) {
    ae::routines::WaitSpec spec = wait_spec(options, ae::engine::WaitType::human);
    spec.data = std::move(data);
    return internal(context_).approval(question, spec);
  });
}

namespace {

std::shared_ptr<void> shared(ae::routines::Pending pending) {
  return std::make_shared<ae::routines::Pending>(std::move(pending));
}

}  // namespace

Child Context::start(std::string_view agent, const Value& input, const StartOptions& options) {
  Child child;
  auto converted = ae::embed::to_internal(input);
  if (!converted) return child;
  ae::routines::Child started =
      internal(context_).start(agent, *std::move(converted),
                               {.request = {.key = options.key}, .detached = options.detached});
  child.id_ = started.id().text.string();
  child.request_ = shared(std::move(started));
  return child;
}

Status Context::send(std::string_view job, const Recipient& to, const Value& payload,
                     const Options& options) {
  const auto sent = with_value(payload, [&](ae::Value converted) {
    return internal(context_)
        .later_send(job, {.channel = to.channel, .key = to.key}, std::move(converted),
                    to_internal(options))
        .get();
  });
  if (!sent) return std::unexpected(sent.error());
  return {};
}

Pending Context::later_run(std::string_view name, Effect effect, const Value& args,
                           Function function, const Options& options) {
  Pending pending;
  auto converted = ae::embed::to_internal(args);
  if (!converted) return pending;
  pending.request_ = shared(internal(context_).later_run(
      name, to_internal(effect), *std::move(converted), ae::embed::to_internal(std::move(function)),
      to_internal(options)));
  return pending;
}

Pending Context::later_call(std::string_view tool, const Value& args, const Options& options) {
  Pending pending;
  auto converted = ae::embed::to_internal(args);
  if (!converted) return pending;
  pending.request_ =
      shared(internal(context_).later_call(tool, *std::move(converted), to_internal(options)));
  return pending;
}

Pending Context::later_sleep(Duration duration, const Options& options) {
  Pending pending;
  pending.request_ = shared(internal(context_).later_sleep(duration, to_internal(options)));
  return pending;
}

Result<std::size_t> Context::first(std::span<const Pending> pending) {
  std::vector<ae::routines::Pending> requests;
  for (const Pending& one : pending) {
    if (!one.request_) return std::unexpected(Error{"input_invalid", "there is no request"});
    requests.push_back(pending_of(one.request_));
  }
  const auto first = internal(context_).first(requests);
  if (!first) return std::unexpected(to_public_failure(first.error()));
  return *first;
}

Result<Value> Context::scope(std::string_view name,
                             const std::function<Result<Value>(Context&)>& body) {
  return to_public_result(
      internal(context_).scope(name, [&](ae::routines::Context& inner) -> ae::Result<ae::Value> {
        Context context = ContextFactory::make(inner);
        const Result<Value> result = body(context);
        if (!result) return std::unexpected(ae::embed::to_internal(result.error()));
        return ae::embed::to_internal(*result);
      }));
}

Result<Value> Context::loop(
    std::string_view name, const Value& state,
    const std::function<Result<Turn>(Context&, const Value& state, std::uint64_t number)>& body) {
  auto first = ae::embed::to_internal(state);
  if (!first) return std::unexpected(ae::embed::to_public(first.error()));
  return to_public_result(internal(context_).loop(
      name, *std::move(first),
      [&](ae::routines::Context& inner, const ae::Value& at,
          std::uint64_t number) -> ae::Result<ae::routines::Turn> {
        Context context = ContextFactory::make(inner);
        const Result<Turn> turn = body(context, ae::embed::to_public(at), number);
        if (!turn) return std::unexpected(ae::embed::to_internal(turn.error()));
        AE_ASSIGN(ae::Value value, ae::embed::to_internal(turn->value));
        return ae::routines::Turn{.is_last = turn->is_last, .value = std::move(value)};
      }));
}

Result<std::vector<Value>> Context::map(
    std::string_view name, const std::vector<Value>& items,
    const std::function<Result<Value>(Context&, const Value& item, std::size_t index)>& body,
    const MapOptions& options) {
  std::vector<ae::Value> converted;
  for (const Value& item : items) {
    auto one = ae::embed::to_internal(item);
    if (!one) return std::unexpected(ae::embed::to_public(one.error()));
    converted.push_back(*std::move(one));
  }
  const auto results = internal(context_).map(
      name, converted,
      [&](ae::routines::Context& inner, const ae::Value& item,
          std::size_t index) -> ae::Result<ae::Value> {
        Context context = ContextFactory::make(inner);
        const Result<Value> result = body(context, ae::embed::to_public(item), index);
        if (!result) return std::unexpected(ae::embed::to_internal(result.error()));
        return ae::embed::to_internal(*result);
      },
      {.parallel = options.parallel,
       .collect_errors = options.collect_errors,
       .fold = options.fold});
  if (!results) return std::unexpected(to_public_failure(results.error()));
  std::vector<Value> all;
  for (const ae::Value& result : *results) all.push_back(ae::embed::to_public(result));
  return all;
}

Instant Context::now() { return Instant(Duration(internal(context_).now().us)); }
double Context::random() { return internal(context_).random(); }
std::string Context::uuid() { return internal(context_).uuid(); }
bool Context::patched(std::string_view id) { return internal(context_).patched(id); }

Status Context::emit(std::string_view name, const Value& value) {
  auto converted = ae::embed::to_internal(value);
  if (!converted) return std::unexpected(ae::embed::to_public(converted.error()));
  return to_public_status(internal(context_).emit(name, *std::move(converted)));
}

Status Context::publish(std::string_view name, const Value& value) {
  auto converted = ae::embed::to_internal(value);
  if (!converted) return std::unexpected(ae::embed::to_public(converted.error()));
  return to_public_status(internal(context_).publish(name, *std::move(converted)));
}

Value Context::job() const { return ae::embed::to_public(internal(context_).job()); }
bool Context::is_replaying() const { return internal(context_).is_replaying(); }

}  // namespace aetheris

namespace ae::embed {

routines::AgentBody to_internal(
    std::function<aetheris::Result<aetheris::Value>(aetheris::Context&, const aetheris::Value&)>
        body) {
  return [body = std::move(body)](routines::Context& context, const Value& input) -> Result<Value> {
    aetheris::Context public_context = aetheris::ContextFactory::make(context);
    const auto result = body(public_context, to_public(input));
    if (!result) return std::unexpected(to_internal(result.error()));
    return to_internal(*result);
  };
}

}  // namespace ae::embed
