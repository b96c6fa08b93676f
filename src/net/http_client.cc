#include "net/http_client.h"

#include <curl/curl.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.h"
#include "net/outbound.h"
#include "net/system.h"
#include "net/unix_path.h"

namespace ae::net {
namespace {

constexpr std::size_t kUrlMax = 64u << 10;
// Maximum age of an idle connection to be reused: servers close theirs after two to five seconds,
// and a request that collides with the close has an unknown outcome.
constexpr long kIdleConnectionSeconds = 1;
// Receive buffer: a stream's events are small, and a thousand streams may be open, one buffer each.
constexpr long kStreamBuffer = 4 << 10;
constexpr int kPollMsMax = 60'000;

std::int64_t client_now_us() { return BootClock().since_start().count(); }

std::int64_t saturating_add(std::int64_t from, Duration by) {
  const std::int64_t add = std::max<std::int64_t>(by.count(), 0);
  return add > INT64_MAX - from ? INT64_MAX : from + add;
}

long to_curl_ms(Duration duration) {
  constexpr std::int64_t kDayMs = 24 * 3600 * 1000;
  return static_cast<long>(std::clamp<std::int64_t>((duration.count() + 999) / 1000, 1, kDayMs));
}

// Why the request is invalid; empty if it is valid.
std::string request_error(const HttpCall& call) {
  const auto is_upper = [](char c) { return c >= 'A' && c <= 'Z'; };
  if (call.method.empty() || call.method.size() > 16 ||
      !std::ranges::all_of(call.method, is_upper)) {
    return "the method is not a word of upper-case letters";
  }
  if (call.public_only && (!call.new_connection || !call.unix_socket.empty())) {
    return "a call whose host data chose needs a connection of its own";
  }
  if (call.method == "CONNECT") return "CONNECT is not a method for a tool";
  if (!call.url.starts_with("http://") && !call.url.starts_with("https://")) {
    return "the URL does not begin with http:// or https://";
  }
  if (call.url.size() > kUrlMax) return "the URL is longer than 64 KiB";
  if (!std::ranges::all_of(call.url, [](char c) { return c > 0x20 && c < 0x7F; })) {
    return "the URL holds characters that must be percent-encoded";
  }
  for (const HttpHeader& header : call.headers) {
    if (!is_header_name(header.name)) return "a header's name holds forbidden characters";
    if (!is_header_value(header.value)) {
      return fmt::format("the value of header {} holds a line break or a control character",
                         header.name);
    }
  }
  if (!call.body.empty() && (call.method == "GET" || call.method == "HEAD")) {
    return fmt::format("{} has no body", call.method);
  }
  return {};
}

// One header line from curl, without its line end and the whitespace around the value.
HttpHeader to_header(std::string_view line) {
  const std::size_t colon = std::min(line.find(':'), line.size());
  std::string_view value = line.substr(std::min(colon + 1, line.size()));
  while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
  while (!value.empty() && (value.back() == ' ' || value.back() == '\t')) value.remove_suffix(1);
  return {std::string(line.substr(0, colon)), std::string(value)};
}

bool is_event_stream(const HttpResult& answer) {
  constexpr std::string_view kType = "text/event-stream";
  const std::string_view type = find_header(answer.headers, "Content-Type").value_or("");
  return answer.status >= 200 && answer.status < 300 &&
         equal_ignoring_case(type.substr(0, kType.size()), kType);
}

enum class Ending { completed, cancelled, deadline_passed };

// One exchange. Owned by the client's thread; until it is picked up there, guarded by the mutex.
struct Transfer {
  Transfer() = default;
  ~Transfer() {
    curl_slist_free_all(sent_headers);
    curl_easy_cleanup(easy);
  }
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  HttpClient::Id id = 0;
  HttpCall call;
  async::Done<HttpResult> done;
  std::int64_t started = 0;
  std::int64_t deadline = INT64_MAX;  // of send_within; once sent, of total_timeout
  std::int64_t deadline_after_send = INT64_MAX;

  CURL* easy = nullptr;
  curl_slist* sent_headers = nullptr;
  std::optional<UnixPath> socket;
  std::array<char, CURL_ERROR_SIZE> error_text{};

  bool sent = false;  // set right before the first byte is sent
  std::vector<HttpClient::Id>* just_sent = nullptr;
  bool refused_late = false;   // … or refused, because the deadline had passed
  std::string denied_address;  // the address that was not public
  int shortage_errno = 0;      // the errno if no connection could be opened
  bool answer_began = false;
  bool in_header = false;  // between a status line and the empty line after its headers
  bool headers_complete = false;
  bool headers_too_large = false;
  std::size_t header_bytes = 0;
  std::size_t header_bytes_max = 0;
  std::size_t body_bytes = 0;
  int status_line = 0;
  std::shared_ptr<bool>
      tls_close_notify;  // shared with the TLS connection: the peer sent close_notify
  HttpResult answer;
  async::Loop* loop = nullptr;

  bool about_to_send();
  std::size_t on_header(std::string_view line);
  std::size_t on_body(std::string_view bytes);
};

// The errno if the process or machine has no descriptors left, or 0.
int descriptor_shortage() {
  const int probe = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (probe < 0) return errno == EMFILE || errno == ENFILE ? errno : 0;
  close(probe);
  return 0;
}

// libcurl calls this when the connection is established and the first byte of the request is
// next: the boundary between "not sent" and "unknown outcome". It calls again before it
// re-sends the same request.
bool Transfer::about_to_send() {
  if (sent) return false;
  const std::int64_t now = client_now_us();
  if (now > deadline) {
    refused_late = true;
    return false;
  }
  sent = true;
  deadline_after_send = saturating_add(now, call.total_timeout);
  just_sent->push_back(id);
  return true;
}

std::size_t Transfer::on_header(std::string_view line) {
  answer_began = true;
  const std::size_t size = line.size();
  header_bytes += size;
  if (header_bytes > header_bytes_max) {
    headers_too_large = true;
    return 0;
  }
  while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
  if (headers_complete) return size;  // trailers: ignored
  if (!in_header && line.starts_with("HTTP/")) {
    const std::size_t blank = line.find(' ');
    status_line = blank == std::string_view::npos ? 0 : std::atoi(line.data() + blank + 1);
    answer.headers.clear();
    in_header = true;
  } else if (line.empty()) {
    in_header = false;
    if (status_line >= 200 || status_line == 101) {
      headers_complete = true;
      answer.status = status_line;
      if (call.on_events_begin && is_event_stream(answer)) loop->post(call.on_events_begin);
    }
  } else if ((line[0] == ' ' || line[0] == '\t') && !answer.headers.empty()) {
    answer.headers.back().value += " " + to_header(":" + std::string(line)).value;
  } else {
    answer.headers.push_back(to_header(line));
  }
  return size;
}

std::size_t Transfer::on_body(std::string_view bytes) {
  answer_began = true;
  const std::string_view taken = bytes.substr(0, call.response_max + 1 - body_bytes);
  body_bytes += taken.size();
  answer.too_large = body_bytes > call.response_max;
  const bool is_streamed = call.on_event_bytes && is_event_stream(answer);
  if (!is_streamed || call.keep_event_body) answer.body += taken;
  if (is_streamed) {
    loop->post([deliver = call.on_event_bytes, headers = answer.headers,
                text = std::string(taken)]() mutable { deliver(headers, std::move(text)); });
  }
  return answer.too_large ? 0 : bytes.size();
}

extern "C" {
curl_socket_t ae_open_socket(void* to, curlsocktype, curl_sockaddr* address) noexcept {
  auto* const transfer = static_cast<Transfer*>(to);
  if (transfer->call.public_only && !is_public(address->addr)) {
    transfer->denied_address = address_text(address->addr);
    return CURL_SOCKET_BAD;
  }
  const int fd = socket(address->family, address->socktype | SOCK_CLOEXEC, address->protocol);
  if (fd < 0 && is_resource_shortage(errno)) transfer->shortage_errno = errno;
  return fd < 0 ? CURL_SOCKET_BAD : fd;
}
int ae_about_to_send(void* to, char*, char*, int, int) noexcept {
  return static_cast<Transfer*>(to)->about_to_send() ? CURL_PREREQFUNC_OK : CURL_PREREQFUNC_ABORT;
}
std::size_t ae_on_header(char* bytes, std::size_t one, std::size_t count, void* to) noexcept {
  return static_cast<Transfer*>(to)->on_header({bytes, one * count});
}
std::size_t ae_on_body(char* bytes, std::size_t one, std::size_t count, void* to) noexcept {
  return static_cast<Transfer*>(to)->on_body({bytes, one * count});
}
}

// The phase in which an exchange ended before any byte was sent.
HttpPhase unsent_phase(CURLcode code, Transfer& t) {
  if (!t.denied_address.empty()) return HttpPhase::connect_failed;
  // Other steps that need descriptors (DNS, certificates) report a different error.
  if (t.shortage_errno == 0) t.shortage_errno = descriptor_shortage();
  long why = 0;
  curl_easy_getinfo(t.easy, CURLINFO_OS_ERRNO, &why);
  if (t.shortage_errno == 0 && code == CURLE_COULDNT_CONNECT &&
      is_resource_shortage(static_cast<int>(why))) {
    t.shortage_errno = static_cast<int>(why);
  }
  switch (code) {
    case CURLE_URL_MALFORMAT:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_LOGIN_DENIED:
    case CURLE_BAD_FUNCTION_ARGUMENT:
      return HttpPhase::invalid;
    case CURLE_OUT_OF_MEMORY:
    case CURLE_FAILED_INIT:
      return HttpPhase::not_sent;
    default:
      if (t.shortage_errno != 0) return HttpPhase::not_sent;
      break;
  }
  switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:  // also: a socket path that is too long
    case CURLE_COULDNT_RESOLVE_PROXY:
      return t.socket ? HttpPhase::connect_failed : HttpPhase::resolve_failed;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CRL_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_INVALIDCERTSTATUS:
    case CURLE_SSL_PINNEDPUBKEYNOTMATCH:
    case CURLE_SSL_CLIENTCERT:
      return HttpPhase::tls_failed;
    default:
      break;
  }
  curl_off_t named = 0;
  curl_easy_getinfo(t.easy, CURLINFO_NAMELOOKUP_TIME_T, &named);
  if (named == 0 && code == CURLE_OPERATION_TIMEDOUT) return HttpPhase::resolve_failed;
  return HttpPhase::connect_failed;
}

// True if the end of the response was seen, not just the end of the connection. libcurl ignores a
// Content-Length it cannot parse and then reads until the connection closes; and it takes a
// truncated TLS connection for a closed one.
bool is_end_of_answer_seen(const Transfer& t) {
  const HttpResult& a = t.answer;
  if (t.call.method == "HEAD" || a.status == 204 || a.status == 304) return true;
  if (find_header(a.headers, "Transfer-Encoding")) return true;
  bool has_length = false;
  for (const HttpHeader& header : a.headers) {
    if (!equal_ignoring_case(header.name, "Content-Length")) continue;
    if (header.value != std::to_string(t.body_bytes)) return false;
    has_length = true;
  }
  long version = 0;
  curl_easy_getinfo(t.easy, CURLINFO_HTTP_VERSION, &version);
  const bool is_http_2 = version == CURL_HTTP_VERSION_2_0;
  if (has_length || is_http_2 || !t.call.url.starts_with("https://")) return true;
  return t.tls_close_notify && *t.tls_close_notify;
}

// ---- close_notify: each TLS connection has a flag, shared with its first transfer

extern "C" {
void ae_free_close_notify(void*, void* flag, CRYPTO_EX_DATA*, int, long, void*) noexcept {
  delete static_cast<std::shared_ptr<bool>*>(flag);
}
}

int close_notify_index() {
  static const int index =
      SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, ae_free_close_notify);
  return index;
}

extern "C" {
void ae_on_tls_alert(const SSL* ssl, int where, int value) noexcept {
  if (where != SSL_CB_READ_ALERT || (value & 0xFF) != SSL_AD_CLOSE_NOTIFY) return;
  void* flag = SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), close_notify_index());
  if (flag != nullptr) **static_cast<std::shared_ptr<bool>*>(flag) = true;
}
CURLcode ae_watch_tls(CURL*, void* context, void* to) noexcept {
  auto* tls = static_cast<SSL_CTX*>(context);
  auto flag = std::make_unique<std::shared_ptr<bool>>(std::make_shared<bool>(false));
  static_cast<Transfer*>(to)->tls_close_notify = *flag;
  if (SSL_CTX_set_ex_data(tls, close_notify_index(), flag.get()) != 1) return CURLE_OUT_OF_MEMORY;
  // NOLINTNEXTLINE(bugprone-unused-return-value): the TLS context owns it now
  static_cast<void>(flag.release());
  SSL_CTX_set_info_callback(tls, ae_on_tls_alert);
  return CURLE_OK;
}
}

void start_libcurl_once() {
  [[maybe_unused]] static const bool started = [] {
    AE_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK, "libcurl does not start");
    return true;
  }();
}

}  // namespace

class HttpClient::Worker {
 public:
  Worker(async::Loop& loop, Options options);
  ~Worker();

  Id start(HttpCall call, async::Done<HttpResult> done);
  void cancel(Id id);

 private:
  void run();
  void take_queued();
  void begin(std::unique_ptr<Transfer> transfer);
  void set_up(Transfer& transfer);
  void note_sent();
  void end_expired();
  void end_finished();
  void end(Id id, Ending ending, CURLcode code);
  void answer(std::unique_ptr<Transfer> transfer);
  int poll_ms() const;

  async::Loop& loop_;
  const Options options_;
  CURLM* multi_ = nullptr;
  Id last_id_ = 0;  // on the loop's thread
  std::atomic<std::size_t> in_flight_ = 0;

  std::mutex mutex_;
  std::vector<std::unique_ptr<Transfer>> starting_;  // under mutex_
  std::vector<Id> cancelling_;                       // under mutex_
  bool stopping_ = false;                            // under mutex_

  // Only on the client's thread:
  std::unordered_map<Id, std::unique_ptr<Transfer>> transfers_;
  std::set<std::pair<std::int64_t, Id>> deadlines_;
  std::vector<Id> just_sent_;

  std::thread thread_;
};

HttpClient::Worker::Worker(async::Loop& loop, Options options)
    : loop_(loop), options_(std::move(options)) {
  start_libcurl_once();
  multi_ = curl_multi_init();
  AE_CHECK(multi_ != nullptr, "no memory for libcurl");
  curl_multi_setopt(multi_, CURLMOPT_MAX_TOTAL_CONNECTIONS, options_.connections_max);
  curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, 64L);
  // Signals are handled by the loop; and a write to a dead connection must not end the process.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

HttpClient::Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  curl_multi_wakeup(multi_);
  thread_.join();
  curl_multi_cleanup(multi_);
}

HttpClient::Id HttpClient::Worker::start(HttpCall call, async::Done<HttpResult> done) {
  auto transfer = std::make_unique<Transfer>();
  const Id id = transfer->id = ++last_id_;
  transfer->started = client_now_us();
  if (call.send_within) transfer->deadline = saturating_add(transfer->started, *call.send_within);
  transfer->call = std::move(call);
  transfer->done = std::move(done);
  transfer->header_bytes_max = options_.response_headers_max;
  transfer->loop = &loop_;
  transfer->answer.error = request_error(transfer->call);
  if (in_flight_++ >= options_.calls_max && transfer->answer.error.empty()) {
    transfer->answer.phase = HttpPhase::not_sent;
    transfer->answer.error = "too many calls are in flight";
  }
  if (!transfer->answer.error.empty()) {
    answer(std::move(transfer));
    return id;
  }
  bool asleep;
  {
    const std::lock_guard lock(mutex_);
    asleep = starting_.empty();
    starting_.push_back(std::move(transfer));
  }
  if (asleep) curl_multi_wakeup(multi_);
  return id;
}

void HttpClient::Worker::cancel(Id id) {
  {
    const std::lock_guard lock(mutex_);
    cancelling_.push_back(id);
  }
  curl_multi_wakeup(multi_);
}

// ---- on the client's thread

void HttpClient::Worker::run() {
  for (;;) {
    take_queued();
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    int running = 0;
    curl_multi_perform(multi_, &running);
    note_sent();
    end_finished();
    end_expired();
    curl_multi_poll(multi_, nullptr, 0, poll_ms(), nullptr);
  }
  take_queued();
  while (!transfers_.empty()) end(transfers_.begin()->first, Ending::cancelled, CURLE_OK);
}

void HttpClient::Worker::take_queued() {
  std::vector<std::unique_ptr<Transfer>> starting;
  std::vector<Id> cancelling;
  {
    const std::lock_guard lock(mutex_);
    starting.swap(starting_);
    cancelling.swap(cancelling_);
  }
  for (auto& transfer : starting) begin(std::move(transfer));
  for (const Id id : cancelling) {
    if (transfers_.contains(id)) end(id, Ending::cancelled, CURLE_OK);
  }
}

void HttpClient::Worker::begin(std::unique_ptr<Transfer> transfer) {
  transfer->easy = curl_easy_init();
  AE_CHECK(transfer->easy != nullptr, "no memory for libcurl");
  transfer->just_sent = &just_sent_;
  set_up(*transfer);
  curl_multi_add_handle(multi_, transfer->easy);
  const Id id = transfer->id;
  deadlines_.emplace(transfer->deadline, id);
  transfers_.emplace(id, std::move(transfer));
}

void HttpClient::Worker::set_up(Transfer& t) {
  CURL* easy = t.easy;
  const HttpCall& call = t.call;
  curl_easy_setopt(easy, CURLOPT_PRIVATE, &t);
  curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, t.error_text.data());
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_QUICK_EXIT,
                   1L);  // a slow name lookup does not block other calls

  curl_easy_setopt(easy, CURLOPT_URL, call.url.c_str());
  curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
  curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  curl_easy_setopt(easy, CURLOPT_DISALLOW_USERNAME_IN_URL, 1L);
  curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(easy, CURLOPT_PROXY,
                   options_.proxy.c_str());  // "" also ignores the environment
  if (!options_.ca_file.empty()) {
    curl_easy_setopt(easy, CURLOPT_CAINFO, options_.ca_file.c_str());
    curl_easy_setopt(easy, CURLOPT_CAPATH, nullptr);
  }
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, to_curl_ms(call.connect_timeout));
  if (!call.unix_socket.empty()) {
    t.socket.emplace(call.unix_socket);
    curl_easy_setopt(easy, CURLOPT_UNIX_SOCKET_PATH, t.socket->usable().c_str());
  }
  if (call.new_connection) {
    curl_easy_setopt(easy, CURLOPT_FRESH_CONNECT, 1L);
    curl_easy_setopt(easy, CURLOPT_FORBID_REUSE, 1L);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  } else {
    curl_easy_setopt(easy, CURLOPT_MAXAGE_CONN, kIdleConnectionSeconds);
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_2TLS));
  }

  const bool bodyless = call.method == "GET" || call.method == "HEAD";
  if (call.method == "HEAD") {
    curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
  } else if (!bodyless) {
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call.body.c_str());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size()));
    curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, call.method.c_str());
  }
  if (call.on_event_bytes) curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, kStreamBuffer);
  curl_easy_setopt(easy, CURLOPT_USERAGENT, "aetheris");
  const auto add = [&](const std::string& line) {
    curl_slist* longer = curl_slist_append(t.sent_headers, line.c_str());
    AE_CHECK(longer != nullptr, "no memory for libcurl");
    t.sent_headers = longer;
  };
  for (const HttpHeader& header : call.headers) {
    add(header.value.empty() ? fmt::format("{};", header.name)
                             : fmt::format("{}: {}", header.name, header.value));
  }
  add("Expect:");  // else a large body waits for 100 Continue
  if (!bodyless && !find_header(call.headers, "Content-Type")) add("Content-Type:");
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t.sent_headers);

  curl_easy_setopt(easy, CURLOPT_OPENSOCKETFUNCTION, ae_open_socket);
  curl_easy_setopt(easy, CURLOPT_OPENSOCKETDATA, &t);
  curl_easy_setopt(easy, CURLOPT_SSL_CTX_FUNCTION, ae_watch_tls);
  curl_easy_setopt(easy, CURLOPT_SSL_CTX_DATA, &t);
  curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, ae_about_to_send);
  curl_easy_setopt(easy, CURLOPT_PREREQDATA, &t);
  curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, ae_on_header);
  curl_easy_setopt(easy, CURLOPT_HEADERDATA, &t);
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, ae_on_body);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &t);
}

// Once sent, total_timeout replaces send_within.
void HttpClient::Worker::note_sent() {
  for (const Id id : just_sent_) {
    Transfer& t = *transfers_.at(id);
    deadlines_.erase({t.deadline, id});
    t.deadline = t.deadline_after_send;
    deadlines_.emplace(t.deadline, id);
  }
  just_sent_.clear();
}

void HttpClient::Worker::end_expired() {
  const std::int64_t now = client_now_us();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    end(deadlines_.begin()->second, Ending::deadline_passed, CURLE_OK);
  }
}

void HttpClient::Worker::end_finished() {
  int left = 0;
  while (CURLMsg* message = curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const CURLcode code = message->data.result;
    Transfer* transfer = nullptr;
    curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &transfer);
    end(transfer->id, Ending::completed, code);
  }
}

void HttpClient::Worker::end(Id id, Ending ending, CURLcode code) {
  auto node = transfers_.extract(id);
  std::unique_ptr<Transfer> t = std::move(node.mapped());
  deadlines_.erase({t->deadline, id});
  curl_multi_remove_handle(multi_, t->easy);

  HttpResult& a = t->answer;
  const bool whole = ending == Ending::completed && code == CURLE_OK && t->headers_complete &&
                     is_end_of_answer_seen(*t);
  if (t->sent) {
    a.phase = whole             ? HttpPhase::complete
              : t->answer_began ? HttpPhase::cut_off
                                : HttpPhase::no_response;
  } else if (ending != Ending::completed || t->refused_late) {
    a.phase = HttpPhase::not_sent;
  } else {
    a.phase = unsent_phase(code, *t);
  }
  a.cancelled = ending == Ending::cancelled;
  a.timed_out = (ending == Ending::deadline_passed && t->sent) || code == CURLE_OPERATION_TIMEDOUT;
  // libcurl runs out of memory for lines of about 100 KiB, which is more than our limit.
  const bool too_long_for_curl = code == CURLE_OUT_OF_MEMORY && t->sent && !t->headers_complete;
  if (a.phase == HttpPhase::not_sent) {
    a.error = a.cancelled              ? "cancelled before it was sent"
              : t->shortage_errno != 0 ? fmt::format("no connection can be opened now: {}",
                                                     std::strerror(t->shortage_errno))
                                       : "could not be sent in time";
  } else if (a.cancelled) {
    a.error = "cancelled after it was sent";
  } else if (ending == Ending::deadline_passed) {
    a.error = "no complete answer in time";
  } else if (a.too_large) {
    a.error = fmt::format("the answer is larger than {} bytes", t->call.response_max);
  } else if (t->headers_too_large || too_long_for_curl) {
    a.error = fmt::format("the answer's headers are larger than {} bytes", t->header_bytes_max);
  } else if (a.phase == HttpPhase::connect_failed && !t->denied_address.empty()) {
    a.error = fmt::format(
        "address_denied: {} is not a public address, and data chose this host; name it in "
        "`outbound.allow`",
        t->denied_address);
  } else if (a.phase != HttpPhase::complete) {
    const char* text = t->error_text[0] != '\0' ? t->error_text.data() : curl_easy_strerror(code);
    a.error = code == CURLE_OK
                  ? "the answer's end was not seen: its length is wrong, or TLS was cut"
              : t->sent && code == CURLE_ABORTED_BY_CALLBACK
                  ? "the connection was closed before an answer"
                  : text;
  }
  curl_off_t retry_after = 0;
  curl_easy_getinfo(t->easy, CURLINFO_RETRY_AFTER, &retry_after);
  if (retry_after > 0) {
    a.retry_after = std::chrono::seconds(std::min<curl_off_t>(retry_after, 366 * 86'400));
  }
  answer(std::move(t));
}

// Any thread.
void HttpClient::Worker::answer(std::unique_ptr<Transfer> transfer) {
  transfer->answer.elapsed = Duration(client_now_us() - transfer->started);
  --in_flight_;
  loop_.post([done = std::move(transfer->done), answer = std::move(transfer->answer)]() mutable {
    done(std::move(answer));
  });
}

int HttpClient::Worker::poll_ms() const {
  if (deadlines_.empty()) return kPollMsMax;
  const std::int64_t wait = deadlines_.begin()->first - client_now_us();
  return static_cast<int>(std::clamp<std::int64_t>((wait + 999) / 1000, 0, kPollMsMax));
}

HttpClient::HttpClient(async::Loop& loop, Options options)
    : worker_(std::make_unique<Worker>(loop, std::move(options))) {}
HttpClient::~HttpClient() = default;

HttpClient::Id HttpClient::start(HttpCall call, async::Done<HttpResult> done) {
  return worker_->start(std::move(call), std::move(done));
}
void HttpClient::cancel(Id id) { worker_->cancel(id); }

}  // namespace ae::net
