#include "app/api_client.h"

#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "api/authenticator.h"
#include "api/problem.h"
#include "api/target.h"
#include "app/instance.h"
#include "app/key_file.h"
#include "json/json.h"
#include "json/sse_parser.h"
#include "log/field_names.h"
#include "net/asio_loop.h"
#include "net/http_client.h"
#include "store/sqlite/files.h"
#include "store/sqlite/lock_file.h"

namespace ae::app {
namespace {

constexpr auto kOwnerWait = std::chrono::seconds(3);  // for an owner that is starting or stopping
constexpr Duration kHealthWait = std::chrono::seconds(3);
constexpr Duration kServerWait =
    std::chrono::seconds(5);  // for the health check of a server, before other requests
constexpr Duration kAnswerWait = std::chrono::minutes(2);
// While a response is pending, the health of the process is requested this often. If that times
// out, the process is frozen: the kernel still accepts connections for it.
constexpr Duration kHealthEvery = std::chrono::seconds(5),
                   kUnresponsiveMax = std::chrono::seconds(10);
constexpr std::size_t kAnswerMax = std::size_t{1}
                                   << 30;  // bytes, from the process that owns the store
constexpr std::size_t kServerAnswerMax = std::size_t{256} << 20;  // … from a server
constexpr Duration kStreamTimeout = std::chrono::hours(24);       // then it is requested again
constexpr std::size_t kStreamMax = 256u << 20;  // bytes of a stream; then it is requested again
constexpr auto kOwnerPoll = std::chrono::milliseconds(50);

const api::Path kHealth{"api", "health"};

bool exists(const std::string& path) {
  struct stat found{};
  return ::stat(path.c_str(), &found) == 0;
}

// A frozen owner must not block commands for long.
Duration request_timeout(const api::ApiRequest& request, Duration health) {
  if (request.path == kHealth) return health;
  for (const auto& [name, value] : request.query) {
    if (name != "wait") continue;
    if (const auto wait = duration_from_text(value)) return *wait + kAnswerWait;
  }
  return kAnswerWait;
}

// A client over HTTP: of the owner of a store on its socket, or of a server.
class SocketClient final : public ApiClient {
 public:
  // `path`: a Unix socket; "" = none, then `base` is the URL of the server.
  explicit SocketClient(std::string path, std::string base = "http://localhost",
                        std::string key = {}, const std::string& ca_file = {})
      : path_(std::move(path)),
        base_(std::move(base)),
        key_(std::move(key)),
        client_(loop_, {.proxy = {}, .ca_file = ca_file}) {}

  Result<api::ApiResponse> send(const api::ApiRequest& request) override {
    std::optional<Result<api::ApiResponse>> answer;
    send_async(request, [&](Result<api::ApiResponse> seen) {
      answer = std::move(seen);
      loop_.stop();
    });
    while (!answer) loop_.run();
    return *std::move(answer);
  }
  void send_async(const api::ApiRequest& request,
                  async::Done<Result<api::ApiResponse>> done) override {
    const auto pending = std::make_shared<PendingCall>(PendingCall{.method = request.method});
    pending->id = client_.start(call_of(request), [this, pending, done = std::move(done)](
                                                      const net::HttpResult& seen) mutable {
      pending->over = true;
      if (pending->timer) loop_.cancel(*pending->timer);
      done(pending->is_unresponsive ? std::unexpected(is_unresponsive(pending->method))
                                    : answer_of(pending->method, seen));
    });
    if (request.path != kHealth) schedule_health_check(pending);
  }
  Result<api::ApiResponse> follow(const api::ApiRequest& request,
                                  const std::function<bool(const LiveEvent&)>& on_event) override {
    net::HttpCall call = call_of(request);
    call.headers.push_back({"Accept", "text/event-stream"});
    call.total_timeout = kStreamTimeout;
    call.response_max = kStreamMax;
    SseParser stream({.line_max = kStreamMax, .event_max = kStreamMax});
    net::HttpClient::Id id = 0;
    bool enough = false;
    call.keep_event_body = false;
    call.on_event_bytes = [&](const net::HttpHeaders&, const std::string& bytes) {
      std::vector<SseEvent> events;
      const Status fed = stream.feed(bytes, events);
      for (SseEvent& event : events) {
        if (!enough) enough = !on_event({std::move(event.name), std::move(event.data)});
      }
      if (events.empty() && !enough) enough = !on_event({});
      enough = enough || !fed;
      if (enough) client_.cancel(id);
    };
    std::optional<net::HttpResult> seen;
    id = client_.start(std::move(call), [&](net::HttpResult answer) {
      seen = std::move(answer);
      loop_.stop();
    });
    following_ = id;
    if (stops_following_) client_.cancel(id);
    while (!seen) loop_.run();
    following_.reset();
    const bool streamed =
        enough || stops_following_ ||
        (seen->phase == net::HttpPhase::complete && (seen->status == 200 || seen->status == 204));
    if (streamed) return api::ApiResponse{.status = seen->status, .body = {}, .location = {}};
    return answer_of(request.method, *seen);
  }
  void stop_following() override {
    loop_.post([this] {
      stops_following_ = true;
      if (following_) client_.cancel(*following_);
    });
  }
  net::AsioLoop& loop() override { return loop_; }
  bool is_remote() const override { return true; }

 private:
  // A request in flight.
  struct PendingCall {
    std::string method;
    net::HttpClient::Id id = 0;
    std::optional<async::TimerId> timer = {};  // until the next health check
    bool over = false;
    bool is_unresponsive = false;  // its health check timed out
  };
  void schedule_health_check(const std::shared_ptr<PendingCall>& pending) {
    pending->timer = loop_.after(kHealthEvery, [this, pending] {
      pending->timer.reset();
      check_health(pending);
    });
  }
  // Does the process that handles the request still respond?
  void check_health(const std::shared_ptr<PendingCall>& pending) {
    net::HttpCall call = call_of({.path = kHealth});
    call.total_timeout = kUnresponsiveMax;
    client_.start(std::move(call), [this, pending](const net::HttpResult& seen) {
      if (pending->over) return;
      if (!seen.timed_out) return schedule_health_check(pending);
      pending->is_unresponsive = true;
      client_.cancel(pending->id);
    });
  }
  Error is_unresponsive(const std::string& method) const {
    const std::string what =
        fmt::format("the process at {} has stopped responding: no health response within {}",
                    where(), ae::to_text(kUnresponsiveMax));
    if (method == "GET") return {Code::unavailable, what};
    return {Code::unknown_outcome, fmt::format("{}; check the outcome before you retry", what)};
  }

  std::size_t response_max() const { return path_.empty() ? kServerAnswerMax : kAnswerMax; }
  const std::string& where() const { return path_.empty() ? base_ : path_; }

  net::HttpCall call_of(const api::ApiRequest& request) const {
    net::HttpCall call;
    call.method = request.method;
    call.url = base_ + api::target(request.path, request.query);
    call.unix_socket = path_;
    call.body = request.body;
    const bool server = path_.empty();
    call.connect_timeout = server ? kServerWait : kHealthWait;
    call.total_timeout = request_timeout(request, call.connect_timeout);
    call.response_max = response_max();
    if (!key_.empty()) call.headers.push_back({"Authorization", "Bearer " + key_});
    if (!request.by.empty()) call.headers.push_back({"X-Aetheris-By", request.by});
    if (!request.body.empty()) call.headers.push_back({"Content-Type", "application/json"});
    if (request.idempotency_key) {
      call.headers.push_back({"Idempotency-Key", *request.idempotency_key});
    }
    return call;
  }

  Result<api::ApiResponse> answer_of(const std::string& method, const net::HttpResult& seen) const {
    if (!seen.sent()) {
      return fail(Code::unavailable, "no server responds at {}: {}", where(), seen.error);
    }
    if (seen.too_large && method == "GET") {
      return fail(Code::payload_too_large, "{}: {}: request less of it", where(), seen.error);
    }
    if (seen.phase != net::HttpPhase::complete) {
      return fail(Code::unknown_outcome,
                  "the server at {} closed the connection before it responded ({}); "
                  "check the outcome before you retry",
                  where(), seen.error);
    }
    api::ApiResponse response{.status = seen.status, .body = {}, .location = {}};
    auto body = parse_json(seen.body, {.bytes_max = response_max(), .depth_max = 1000});
    const bool ours = body && (seen.status < 400 || !body->text(field::code).empty());
    if (!ours) return std::unexpected(not_aetheris_error(method, seen.status));
    response.body = std::move(*body);
    if (const auto location = net::find_header(seen.headers, "location")) {
      response.location = *location;
    }
    return response;
  }

  // A proxy in front of our server may have forwarded the request and lost the response. A refusal
  // or a GET had no effect.
  Error not_aetheris_error(const std::string& method, int status) const {
    const std::string message =
        fmt::format("the server at {} is not an aetheris server ({})", where(), status);
    if (method == "GET" || (status >= 300 && status < 500)) return {Code::unavailable, message};
    return {Code::unknown_outcome,
            fmt::format("{}, or a proxy is in front of one; check the outcome before you retry",
                        message)};
  }

  std::string path_, base_, key_;
  net::AsioLoop loop_;
  net::HttpClient client_;
  std::optional<net::HttpClient::Id> following_;  // the stream
  bool stops_following_ = false;
};

class LocalClient final : public ApiClient {
 public:
  explicit LocalClient(std::unique_ptr<Instance> instance) : instance_(std::move(instance)) {}
  Result<api::ApiResponse> send(const api::ApiRequest& request) override {
    return instance_->send(request);
  }
  bool is_remote() const override { return false; }
  Result<api::ApiResponse> follow(const api::ApiRequest&,
                                  const std::function<bool(const LiveEvent&)>&) override {
    return fail(Code::unsupported, "this process runs nothing that could be listened to");
  }
  void stop_following() override {}
  void send_async(const api::ApiRequest& request,
                  async::Done<Result<api::ApiResponse>> done) override {
    instance_->api().handle(request, [done = std::move(done)](api::ApiResponse answer) mutable {
      done(std::move(answer));
    });
  }
  net::AsioLoop& loop() override { return instance_->loop(); }

 private:
  std::unique_ptr<Instance> instance_;
};

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// "" = none. Errors do not contain the key.
Result<std::string> key_for_server() {
  std::string key = environment("AETHERIS_API_KEY");
  std::string from = "AETHERIS_API_KEY";
  if (key.empty()) {
    const std::string file = environment("AETHERIS_API_KEY_FILE");
    if (file.empty()) return key;
    AE_ASSIGN(key, read_private_file(file, "API key"));
    from = file;
  }
  if (!api::key_from_text(key)) {
    return fail(Code::usage, Action{.act = act::kCreateKey},
                "{} holds no API key (aek_…) as it was printed when the key was created", from);
  }
  return key;
}

}  // namespace

namespace {

// nullptr: no owner. Fails with forbidden: an owner that refuses us.
Result<std::unique_ptr<ApiClient>> find_listening_owner(const StoreUrl& store) {
  if (store.kind != StoreUrl::Kind::sqlite) return nullptr;
  for (const std::string& path : {store.socket_path(), store.second_socket_path()}) {
    if (!exists(path)) continue;
    auto client = std::make_unique<SocketClient>(path);
    api::ApiRequest health;
    health.path = {"api", "health"};
    auto answer = client->send(health);
    if (answer && answer->status == 403) {
      return fail(Code::forbidden, std::string(answer->body.text(field::detail)));
    }
    if (!answer || answer->status != 200) continue;
    if (answer->body.text("store") == store::sqlite::canonical_path(store.path)) return client;
  }
  return nullptr;
}

}  // namespace

std::unique_ptr<ApiClient> ApiClient::connect_to_socket(std::string path) {
  return std::make_unique<SocketClient>(std::move(path));
}

std::unique_ptr<ApiClient> find_owner(const StoreUrl& store) {
  auto owner = find_listening_owner(store);
  return owner ? *std::move(owner) : nullptr;
}

std::string find_unresponsive_owner(const StoreUrl& store) {
  const std::string lock = store::sqlite::lock_path(store::sqlite::canonical_path(store.path));
  const auto retry_until = std::chrono::steady_clock::now() + kOwnerWait;
  do {
    if (!store::sqlite::LockFile::is_locked(lock) || find_owner(store)) return {};
    std::this_thread::sleep_for(kOwnerPoll);
  } while (std::chrono::steady_clock::now() < retry_until);
  return owner_name(store);
}

std::string owner_name(const StoreUrl& store) {
  std::ifstream file(store::sqlite::lock_path(store::sqlite::canonical_path(store.path)));
  long pid = 0;
  return file >> pid && pid > 0 ? fmt::format("process {}", pid) : "a process";
}

Result<std::unique_ptr<ApiClient>> ApiClient::connect_to_server(std::string url) {
  if (!url.starts_with("http://") && !url.starts_with("https://")) {
    return fail(
        Code::usage,
        "AETHERIS_URL is the address of a server, such as http://127.0.0.1:7070, not \"{}\"",
        url.substr(0, 80));
  }
  while (url.ends_with('/')) url.pop_back();
  if (url.find_first_of("/?#", url.find("://") + 3) != url.npos) {
    return fail(Code::usage,
                "AETHERIS_URL is the address of a server, without a path, "
                "such as http://127.0.0.1:7070, not \"{}\"",
                url.substr(0, 80));
  }
  AE_ASSIGN(std::string key, key_for_server());
  const std::string ca_file = environment("AETHERIS_CA_FILE");
  if (!ca_file.empty() && ::access(ca_file.c_str(), R_OK) != 0) {
    return fail(Code::usage, "AETHERIS_CA_FILE: cannot read {}", ca_file);
  }
  // A server without keys inspects our open files to detect tools (tool_peer.h).
  if (key.empty()) ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
  return std::make_unique<SocketClient>("", std::move(url), std::move(key), ca_file);
}

Result<std::unique_ptr<ApiClient>> ApiClient::open(const StoreUrl& store, OpenMode mode) {
  if (const char* url = std::getenv("AETHERIS_URL"); url != nullptr && *url != '\0') {
    AE_ASSIGN(auto client, connect_to_server(url));
    // A frozen server must not block the command, nor receive it: a request that was not sent can
    // be retried.
    api::ApiRequest health;
    health.path = {"api", "health"};
    const auto answer = client->send(health);
    if (!answer && answer.error().code == Code::unknown_outcome) {
      return fail(Code::unavailable,
                  "the server at {} does not respond (health check within {}): nothing was sent",
                  url, ae::to_text(kServerWait));
    }
    return client;
  }
  const auto retry_until = std::chrono::steady_clock::now() + kOwnerWait;
  while (true) {
    AE_ASSIGN(auto owner, find_listening_owner(store));
    if (owner) return owner;
    if (mode != OpenMode::create && store.kind == StoreUrl::Kind::sqlite && !exists(store.path)) {
      AE_TRY(check_for_rollback(store));
      return fail(Code::not_found, store.found
                                       ? "there is no store in this folder or a parent (.aetheris)"
                                       : fmt::format("there is no store at {}", store.path));
    }
    InstanceOptions options{.store = store};
    options.create = mode == OpenMode::create;
    options.mode =
        mode == OpenMode::read ? InstanceOptions::Mode::read : InstanceOptions::Mode::write;
    auto instance = Instance::open(std::move(options));
    if (instance) {
      if (mode == OpenMode::read && store.kind == StoreUrl::Kind::sqlite) {
        (*instance)->api().set_owner_probe(
            [lock = store::sqlite::lock_path(store::sqlite::resolve_symlinks(store.path))] {
              return store::sqlite::LockFile::is_locked(lock);
            });
      }
      return std::make_unique<LocalClient>(std::move(*instance));
    }
    if (instance.error().code != Code::store_locked ||
        std::chrono::steady_clock::now() > retry_until) {
      return std::unexpected(instance.error());
    }
    std::this_thread::sleep_for(kOwnerPoll);
  }
}

}  // namespace ae::app
