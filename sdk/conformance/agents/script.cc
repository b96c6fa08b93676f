// script: the agent of conformance scenarios, in C++ in its own process (README.md).
//
//   script STORE AGENTS_FILE ADDRESS      serves the HTTP API at ADDRESS until SIGTERM
//
// The library has no races, HTTP of its own, scopes that are not closed, and `on_exception`; branches
// of `all`, and `later`, are calls, sleeps and child jobs.
#include <aetheris/aetheris.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>

namespace {

using aetheris::Call;
using aetheris::Context;
using aetheris::Duration;
using aetheris::Effect;
using aetheris::Error;
using aetheris::Failure;
using aetheris::Pending;
using aetheris::Result;
using aetheris::Value;
using std::chrono::milliseconds;

struct Named {
  Pending request;
  std::string child_id = {};  // of a child job
};
// What the code of a body sees.
struct Scope {
  Context& ctx;
  std::shared_ptr<std::map<std::string, Value>> variables;  // shared by branches
  std::map<std::string, Value> own = {};                    // of the body: item, index, state
  std::shared_ptr<std::map<std::string, Named>> requests =
      std::make_shared<std::map<std::string, Named>>();
};
// The end of an operation. `is_returned`: of the whole body.
struct End {
  Value value = {};
  bool is_returned = false;
};

// An exception of the agent: the job parks.
[[noreturn]] void wrong(const std::string& message) {
  throw std::logic_error("the program is wrong: " + message);
}

// ---------------------------------------------------------------- values

std::size_t index_of(std::string_view text) {
  std::size_t index = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), index);
  return end.ec == std::errc() ? index : SIZE_MAX;
}

Value variable(const Scope& scope, std::string_view path) {
  std::string_view name = path.substr(0, path.find('.'));
  const auto own = scope.own.find(std::string(name));
  Value at;
  if (own != scope.own.end()) {
    at = own->second;
  } else if (const auto found = scope.variables->find(std::string(name));
             found != scope.variables->end()) {
    at = found->second;
  }
  while (name.size() < path.size()) {
    path.remove_prefix(name.size() + 1);
    name = path.substr(0, path.find('.'));
    const Value inner = at.is_array() ? at[index_of(name)] : at[name];
    at = inner;
  }
  return at;
}

bool is_true(const Value& value) {
  return !value.is_null() && !(value.is_bool() && !value.as_bool());
}

bool is_less(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.as_double() < b.as_double();
  if (!a.is_string() || !b.is_string()) wrong("$lt needs two numbers or two texts");
  return a.as_string() < b.as_string();
}

bool is_equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  return a == b;
}

std::int64_t size_of(const Value& value) {
  if (!value.is_string()) return static_cast<std::int64_t>(value.size());
  std::int64_t code_points = 0;
  for (const char c : value.as_string()) code_points += (c & 0xC0) != 0x80 ? 1 : 0;
  return code_points;
}

Value apply(const std::string& name, const Value::Array& given) {
  const auto at = [&](std::size_t i) { return i < given.size() ? given[i] : Value(); };
  if (name == "$cat") {
    std::string text;
    for (const Value& one : given) text += one.is_string() ? one.as_string() : one.to_json();
    return text;
  }
  if (name == "$add") {
    if (at(0).is_integer() && at(1).is_integer()) return at(0).as_int() + at(1).as_int();
    return at(0).as_double() + at(1).as_double();
  }
  if (name == "$len") return size_of(at(0));
  if (name == "$not") return !is_true(at(0));
  if (name == "$eq") return is_equal(at(0), at(1));
  if (name == "$lt") return is_less(at(0), at(1));
  if (name == "$le") return !is_less(at(1), at(0));
  if (name == "$and" || name == "$or") {
    for (const Value& one : given) {
      if (is_true(one) == (name == "$or")) return name == "$or";
    }
    return name == "$and";
  }
  if (name == "$append") {
    Value::Array items = at(0).items();
    items.push_back(at(1));
    return items;
  }
  wrong("there is no " + name);
}

Value evaluate(const Value& value, const Scope& scope) {
  if (value.is_array()) {
    Value::Array items;
    for (const Value& item : value.items()) items.push_back(evaluate(item, scope));
    return items;
  }
  if (!value.is_object()) return value;
  if (value.size() == 1 && value.members().begin()->first.starts_with('$')) {
    const auto& [name, inner] = *value.members().begin();
    if (name == "$quote") return inner;
    if (name == "$var") return variable(scope, inner.as_string());
    const Value given = evaluate(inner, scope);
    if (name == "$len" || name == "$not") return apply(name, {given});
    return apply(name, given.items());
  }
  Value::Object members;
  for (const auto& [name, inner] : value.members()) members[name] = evaluate(inner, scope);
  return members;
}

Duration duration(const Value& value) {
  const std::string& text = value.as_string();
  std::int64_t number = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end.ptr, text.data() + text.size());
  if (unit == "ms") return milliseconds(number);
  if (unit == "s") return std::chrono::seconds(number);
  if (unit == "m") return std::chrono::minutes(number);
  if (unit == "h") return std::chrono::hours(number);
  wrong("\"" + text + "\" is no duration");
}

// ---------------------------------------------------------------- functions

// POSTs JSON to the shop. Throws: it did not answer 200.
void post(const std::string& path, const std::string& body) {
  const char* const shop = std::getenv("AETHERIS_SHOP");
  const std::string address = std::string(shop == nullptr ? "" : shop).substr(7);  // http://
  const std::size_t colon = address.find(':');
  const addrinfo hints{.ai_family = AF_INET, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const std::string host = address.substr(0, colon), port = address.substr(colon + 1);
  if (::getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) {
    throw std::runtime_error("there is no shop at " + address);
  }
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int connected = ::connect(fd, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  const std::string request = "POST " + path + " HTTP/1.1\r\nHost: " + address +
                              "\r\nContent-Type: application/json\r\nConnection: close\r\n" +
                              "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
  std::size_t sent = 0;
  while (connected == 0 && sent < request.size()) {
    const ssize_t n = ::send(fd, request.data() + sent, request.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) break;
    sent += static_cast<std::size_t>(n);
  }
  std::string answer;
  char piece[4096];
  for (ssize_t n = 0; (n = ::recv(fd, piece, sizeof piece, 0)) > 0;) {
    answer.append(piece, static_cast<std::size_t>(n));
  }
  ::close(fd);
  if (!answer.starts_with("HTTP/1.1 200")) throw std::runtime_error("the shop does not answer");
}

// Throws: the call was cut off before.
void wait_for(std::optional<milliseconds> time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any woken;
  std::unique_lock lock(mutex);
  const auto never = [] { return false; };
  if (time) {
    woken.wait_for(lock, stop, *time, never);
  } else {
    woken.wait(lock, stop, never);
  }
  if (stop.stop_requested()) throw std::runtime_error("the call was cut off");
}

std::expected<Value, Failure> perform(const Value& args, Call& call) {
  post("/perform", Value::object({{"key", call.key()},
                                  {"try", static_cast<std::int64_t>(call.try_no())},
                                  {"label", args["label"]},
                                  {"value", args["value"]}})
                       .to_json());
  const Value& does = args["does"];
  const Value act = does[std::min<std::size_t>(call.try_no(), does.size()) - 1];
  if (act["slow_ms"].is_number()) wait_for(milliseconds(act["slow_ms"].as_int()), call.stop());
  if (act["hang"].as_bool()) wait_for({}, call.stop());
  if (act["fail"].is_string()) {
    const std::string& message = act.text(act["message"].is_string() ? "message" : "fail");
    return std::unexpected(Failure{
        .code = act.text("fail"), .message = message, .retryable = act["retryable"].as_bool()});
  }
  if (act["throw"].is_string()) throw std::runtime_error(act.text("throw"));
  return act.members().contains("result") ? act["result"] : args["value"];
}

Value arguments(const Value& op, const Scope& scope, const char* label) {
  const Value& does = op["does"];
  return Value::object({{"label", op.text(op["label"].is_string() ? "label" : label)},
                        {"value", evaluate(op["value"], scope)},
                        {"does", does.is_null()    ? Value::array({Value(Value::Object())})
                                 : does.is_array() ? does
                                                   : Value::array({does})}});
}

aetheris::Options options(const Value& op) {
  aetheris::Options made{.key = op.text("key")};
  if (op["timeout"].is_string()) made.timeout = duration(op["timeout"]);
  if (op["retry"]["max_attempts"].is_integer()) {
    made.retry.max_attempts = static_cast<std::uint32_t>(op["retry"]["max_attempts"].as_int());
  }
  const std::string& in_doubt = op.text("on_in_doubt");
  using enum aetheris::OnInDoubt;
  if (!in_doubt.empty()) {
    made.on_in_doubt = in_doubt == "resend" ? resend
                       : in_doubt == "fail" ? fail
                       : in_doubt == "park" ? park
                                            : probe;
  }
  return made;
}

Effect effect(const std::string& name) {
  if (name == "read") return Effect::read;
  if (name == "idempotent") return Effect::idempotent;
  if (name != "at_most_once") wrong("\"" + name + "\" is no effect");
  return Effect::at_most_once;
}

// ---------------------------------------------------------------- operations

Result<End> execute(const Value& op, Scope& scope);

Result<Value> body(const Value& op, Scope& scope) {
  AETHERIS_ASSIGN(End end, execute(op, scope));
  return std::move(end.value);
}

Result<End> value(Result<Value> result) {
  AETHERIS_ASSIGN(Value made, std::move(result));
  return End{.value = std::move(made)};
}

Result<End> nothing(const aetheris::Status& status) {
  AETHERIS_TRY(status);
  return End{};
}

aetheris::Child start(const Value& op, Scope& scope) {
  return scope.ctx.start(
      op.text("agent"),
      Value::object({{"program", op["program"]}, {"data", evaluate(op["data"], scope)}}),
      {.key = op.text("key"), .detached = op["detached"].as_bool()});
}

// A request that is awaited later.
Named begin(const Value& op, Scope& scope) {
  const std::string& name = op.text("op");
  if (name == "start") {
    const aetheris::Child child = start(op, scope);
    return {.request = child, .child_id = child.id()};
  }
  if (name == "run") {
    return {scope.ctx.later_run(op.text("name"), effect(op.text("effect")),
                                arguments(op, scope, "name"), perform, options(op))};
  }
  if (name == "call") {
    return {scope.ctx.later_call(op.text("tool"), arguments(op, scope, "tool"), options(op))};
  }
  if (name != "sleep") wrong("the library cannot begin \"" + name + "\" without awaiting it");
  return {scope.ctx.later_sleep(duration(op["for"]), options(op))};
}

Result<End> run_all(const Value& op, Scope& scope) {
  std::vector<Pending> pending;
  for (const Value& branch : op["branches"].items())
    pending.push_back(begin(branch, scope).request);
  // The first failure, in order of delivery, is that of all.
  std::vector<Pending> open = pending;
  while (!open.empty()) {
    AETHERIS_ASSIGN(const std::size_t index, scope.ctx.first(open));
    AETHERIS_TRY(open[index].get());
    open.erase(open.begin() + static_cast<std::ptrdiff_t>(index));
  }
  Value::Array results;
  for (std::size_t i = 0; i < pending.size(); ++i) {
    AETHERIS_ASSIGN(Value result, pending[i].get());
    const std::string& as = op["branches"][i].text("as");
    if (!as.empty()) (*scope.variables)[as] = result;
    results.push_back(std::move(result));
  }
  return End{.value = std::move(results)};
}

// What the body of a scope sees. A closed one has its own variables.
Scope inside(const Scope& scope, Context& ctx, bool is_closed) {
  if (!is_closed) return {ctx, scope.variables, scope.own, scope.requests};
  return {ctx, std::make_shared<std::map<std::string, Value>>(*scope.variables), scope.own};
}

Result<End> run_map(const Value& op, Scope& scope) {
  const Value items = evaluate(op["items"], scope);
  const bool fold = op["fold"].as_bool();
  aetheris::MapOptions with{.collect_errors = op.text("on_error") == "collect", .fold = fold};
  if (op["parallel"].is_integer())
    with.parallel = static_cast<std::size_t>(op["parallel"].as_int());
  const auto name = [&](const char* member) {
    return op[member].is_string() ? op.text(member) : std::string(member);
  };
  AETHERIS_ASSIGN(Value::Array results,
                  scope.ctx.map(
                      op.text("name"), items.items(),
                      [&](Context& ctx, const Value& item, std::size_t index) {
                        Scope inner = inside(scope, ctx, fold);
                        inner.own[name("item")] = item;
                        inner.own[name("index")] = static_cast<std::int64_t>(index);
                        return body(op["do"], inner);
                      },
                      with));
  return End{.value = std::move(results)};
}

Result<End> run_loop(const Value& op, Scope& scope) {
  const auto turn = [&](Context& ctx, const Value& state,
                        std::uint64_t number) -> Result<aetheris::Turn> {
    Scope inner = inside(scope, ctx, true);
    inner.own["state"] = state;
    inner.own["index"] = static_cast<std::int64_t>(number);
    AETHERIS_ASSIGN(const Value end, body(op["do"], inner));
    if (end.is_object() && end.members().contains("done")) return aetheris::Turn::done(end["done"]);
    return aetheris::Turn::next(end["next"]);
  };
  return value(scope.ctx.loop(op.text("name"), evaluate(op["state"], scope), turn));
}

aetheris::WaitOptions wait_options(const Value& op, const Scope& scope) {
  aetheris::WaitOptions made;
  made.key = evaluate(op["wait_key"], scope).as_string();
  if (op["expires"].is_string()) made.expires = duration(op["expires"]);
  made.accepts_data = op.text("answer") == "data";
  made.data = evaluate(op["data"], scope);
  return made;
}

Result<End> run_wait(const Value& op, Scope& scope) {
  const bool is_human = op.text("type") == "human";
  if (!is_human && op.text("type") != "signal") {
    wrong("the library has no wait of type " + op.text("type"));
  }
  const aetheris::WaitOptions with = wait_options(op, scope);
  Result<Value> got =
      is_human ? scope.ctx.approval(op.text("question"), with) : scope.ctx.signal(with);
  const bool is_expired = !got && got.error().code == "wait_expired";
  if (is_expired && op.text("on_expire") == "continue") return End{};
  return value(std::move(got));
}

Result<End> run_model(const Value& op, Scope& scope) {
  Value request = Value::object(
      {{"messages", Value::array({Value::object(
                        {{"role", "user"}, {"content", evaluate(op["prompt"], scope)}})})}});
  const bool has_schema = op["schema"].is_object();
  if (has_schema) request = request.with("schema", op["schema"]);
  AETHERIS_ASSIGN(const Value answer, scope.ctx.generate(op.text("model"), request, options(op)));
  return End{.value = answer[has_schema ? "json" : "text"]};
}

Result<End> run_try(const Value& op, Scope& scope) {
  Result<End> done = execute(op["do"], scope);
  if (done || done.error().code == "evicted") return done;
  const std::string name = op["error"].is_string() ? op.text("error") : "error";
  (*scope.variables)[name] =
      Value::object({{"code", done.error().code}, {"message", done.error().message}});
  return execute(op["catch"], scope);
}

Named& named(const Value& op, Scope& scope) {
  const auto found = scope.requests->find(op.text("request"));
  if (found == scope.requests->end()) wrong("there is no request " + op.text("request"));
  return found->second;
}

Result<End> run_seq(const Value& op, Scope& scope) {
  End last;
  for (const Value& one : op["do"].items()) {
    AETHERIS_ASSIGN(last, execute(one, scope));
    if (last.is_returned) break;
  }
  return last;
}

Result<End> run_throw(const Value& op, Scope&) {
  const std::string& message = op.text(op["message"].is_string() ? "message" : "code");
  if (op["exception"].as_bool()) throw std::runtime_error(message);
  return std::unexpected(Error{.code = op.text("code"), .message = message});
}

Result<End> run_scope(const Value& op, Scope& scope) {
  if (!op["fold"].as_bool()) wrong("the library has closed scopes only");
  return value(scope.ctx.scope(op.text("name"), [&](Context& ctx) {
    Scope inner = inside(scope, ctx, true);
    return body(op["do"], inner);
  }));
}

aetheris::Instant instant(const std::string& text) {
  std::tm time{};
  if (::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &time) == nullptr) wrong("no time: " + text);
  return aetheris::Instant(std::chrono::seconds(::timegm(&time)));
}

using Operation = Result<End> (*)(const Value& op, Scope& scope);
using Operations = std::map<std::string, Operation>;

// Parts of the program, and requests.
const Operations& operations() {
  static const Operations kOperations{
      {"seq", run_seq},
      {"all", run_all},
      {"map", run_map},
      {"loop", run_loop},
      {"scope", run_scope},
      {"try", run_try},
      {"throw", run_throw},
      {"wait", run_wait},
      {"model", run_model},
      {"run",
       [](const Value& op, Scope& s) {
         return value(s.ctx.run(op.text("name"), effect(op.text("effect")),
                                arguments(op, s, "name"), perform, options(op)));
       }},
      {"call",
       [](const Value& op, Scope& s) {
         return value(s.ctx.call(op.text("tool"), arguments(op, s, "tool"), options(op)));
       }},
      {"sleep", [](const Value& op,
                   Scope& s) { return nothing(s.ctx.sleep(duration(op["for"]), options(op))); }},
      {"until",
       [](const Value& op, Scope& s) {
         return nothing(s.ctx.until(instant(evaluate(op["at"], s).as_string()), options(op)));
       }},
      {"approval",
       [](const Value& op, Scope& s) {
         return value(s.ctx.approval(evaluate(op["question"], s).as_string(), wait_options(op, s)));
       }},
      {"receive",
       [](const Value& op, Scope& s) {
         std::optional<Duration> expires;
         if (op["expires"].is_string()) expires = duration(op["expires"]);
         return value(s.ctx.receive(op.text("channel"), expires, options(op)));
       }},
      {"start", [](const Value& op, Scope& s) { return value(start(op, s).get()); }},
      {"send",
       [](const Value& op, Scope& s) {
         return nothing(s.ctx.send(evaluate(op["job"], s).as_string(),
                                   {.channel = op.text("channel"), .key = op.text("to_key")},
                                   evaluate(op["value"], s), options(op)));
       }},
      {"later",
       [](const Value& op, Scope& s) -> Result<End> {
         s.requests->insert_or_assign(op.text("request"), begin(op["do"], s));
         return End{};
       }},
      {"await", [](const Value& op, Scope& s) { return value(named(op, s).request.get()); }},
      {"cancel",
       [](const Value& op, Scope& s) -> Result<End> {
         named(op, s).request.cancel();
         return End{};
       }},
  };
  return kOperations;
}

// Values, and what needs no request.
const Operations& local_operations() {
  static const Operations kOperations{
      {"now",
       [](const Value&, Scope& s) -> Result<End> {
         const auto since = s.ctx.now().time_since_epoch();
         return End{.value = std::chrono::duration_cast<milliseconds>(since).count()};
       }},
      {"random", [](const Value&, Scope& s) -> Result<End> { return End{s.ctx.random()}; }},
      {"uuid", [](const Value&, Scope& s) -> Result<End> { return End{s.ctx.uuid()}; }},
      {"patched",
       [](const Value& op, Scope& s) -> Result<End> { return End{s.ctx.patched(op.text("id"))}; }},
      {"emit",
       [](const Value& op, Scope& s) {
         return nothing(s.ctx.emit(op.text("name"), evaluate(op["value"], s)));
       }},
      {"publish",
       [](const Value& op, Scope& s) {
         return nothing(s.ctx.publish(op.text("name"), evaluate(op["value"], s)));
       }},
      {"return",
       [](const Value& op, Scope& s) -> Result<End> {
         return End{.value = evaluate(op["value"], s), .is_returned = true};
       }},
      {"raw", [](const Value&, Scope&) -> Result<End> { return End{}; }},
      {"set",
       [](const Value& op, Scope& s) -> Result<End> {
         const Value made = evaluate(op["value"], s);
         (*s.variables)[op.text("var")] = made;
         return End{made};
       }},
      {"get",
       [](const Value& op, Scope& s) -> Result<End> { return End{evaluate(op["value"], s)}; }},
      {"job",
       [](const Value&, Scope& s) -> Result<End> {
         const Value job = s.ctx.job();
         return End{Value::object({{"agent", job["agent"]}, {"labels", job["labels"]}})};
       }},
      {"job_id", [](const Value&, Scope& s) -> Result<End> { return End{s.ctx.job()["id"]}; }},
      {"child_id",
       [](const Value& op, Scope& s) -> Result<End> { return End{Value(named(op, s).child_id)}; }},
      {"if",
       [](const Value& op, Scope& s) -> Result<End> {
         const Value& chosen = op[is_true(evaluate(op["cond"], s)) ? "then" : "else"];
         return chosen.is_null() ? End{} : execute(chosen, s);
       }},
  };
  return kOperations;
}

Result<End> execute(const Value& op, Scope& scope) {
  auto found = operations().find(op.text("op"));
  if (found == operations().end()) {
    found = local_operations().find(op.text("op"));
    if (found == local_operations().end()) {
      wrong("there is no operation \"" + op.text("op") + "\"");
    }
  }
  AETHERIS_ASSIGN(End end, found->second(op, scope));
  if (op["as"].is_string()) (*scope.variables)[op.text("as")] = end.value;
  return end;
}

Result<Value> script(Context& ctx, const Value& input) {
  auto variables = std::make_shared<std::map<std::string, Value>>();
  (*variables)["input"] = input["data"];
  Scope scope{ctx, std::move(variables)};
  return body(input["program"], scope);
}

// ---------------------------------------------------------------- the process

aetheris::Tool worker_tool(const char* name, Effect effect) {
  Value::Array retry_on{"connect", "busy"};
  if (effect != Effect::at_most_once) {
    retry_on.emplace_back("timeout");
    retry_on.emplace_back("worker_lost");
  }
  return {.name = name,
          .effect = effect,
          .function = perform,
          .options = {{"timeout", "10s"},
                      {"retry", Value::object({{"max_attempts", 3},
                                               {"initial_backoff", "10ms"},
                                               {"retry_on", std::move(retry_on)}})}}};
}

aetheris::Agent script_agent() {
  return {.name = "script",
          .body = script,
          .uses = {"worker_read", "worker_idempotent", "worker_once", "server_read",
                   "server_idempotent", "server_once", "model:main", "server_child", "agent:script",
                   "agent:nowhere", "job:send"},
          .version = "1"};
}

int report(const Error& error) {
  std::fprintf(stderr, "%s: %s\n", error.code.c_str(), error.message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: script STORE AGENTS_FILE ADDRESS\n");
    return 2;
  }
  aetheris::Settings settings{.store = argv[1], .agents_file = argv[2]};
  settings.agents = {script_agent()};
  settings.tools = {worker_tool("worker_read", Effect::read),
                    worker_tool("worker_idempotent", Effect::idempotent),
                    worker_tool("worker_once", Effect::at_most_once)};
  auto runtime = aetheris::Aetheris::open(std::move(settings));
  if (!runtime) return report(runtime.error());
  if (auto served = (*runtime)->serve(argv[3]); !served) return report(served.error());
  return 0;
}
