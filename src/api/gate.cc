// Who may come in: the key in the header against the registry.
#include "api/gate.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "api/problem.h"

namespace ae::api {
namespace {

constexpr std::string_view kPrefix = "aek_";
constexpr std::size_t kIdSize = 12, kSecretSize = 64;

// Takes as long for the first wrong byte as for the last.
bool same(const Hash& a, const Hash& b) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.bytes.size(); ++i) {
    difference |= static_cast<unsigned>(a.bytes[i] ^ b.bytes[i]);
  }
  return difference == 0;
}

bool is_hex(std::string_view text) {
  return std::ranges::all_of(
      text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// The token of `Bearer TOKEN`; "" = there is none.
std::string_view token_of(std::string_view header) {
  constexpr std::string_view kScheme = "bearer";
  const std::size_t end = header.find(' ');
  if (end != kScheme.size()) return {};
  for (std::size_t i = 0; i < end; ++i) {
    if ((header[i] | 0x20) != kScheme[i]) return {};
  }
  const std::size_t from = header.find_first_not_of(' ', end);
  return from == header.npos ? std::string_view() : header.substr(from);
}

Error no_key() {
  return {Code::unauthorized,
          "authentication required: send `Authorization: Bearer aek_…`; for commands set "
          "AETHERIS_API_KEY"};
}

// One text for all that is wrong with a key, so that nobody learns which ids there are.
Error bad_key() { return {Code::unauthorized, "the API key is unknown, expired or revoked"}; }

Error no_token() {
  return {Code::unauthorized, "send the header as `Authorization: Bearer aek_…`"};
}

ApiResponse refusal(const Error& error) {
  return {.status = http_status(error.code), .body = problem(error), .location = {}, .text = {}};
}

}  // namespace

std::string to_text(const KeyText& key) { return std::string(kPrefix) + key.id + "_" + key.secret; }

std::optional<KeyText> key_from_text(std::string_view text) {
  const bool fits = text.size() == kPrefix.size() + kIdSize + 1 + kSecretSize &&
                    text.starts_with(kPrefix) && text[kPrefix.size() + kIdSize] == '_';
  if (!fits) return std::nullopt;
  KeyText key{.id = std::string(text.substr(kPrefix.size(), kIdSize)),
              .secret = std::string(text.substr(text.size() - kSecretSize))};
  if (!is_hex(key.id) || !is_hex(key.secret)) return std::nullopt;
  return key;
}

Hash hash_of_secret(std::string_view secret) { return sha256(secret); }

Gate::Gate(async::Loop& loop, async::SteadyClock& steady, store::Store& store,
           LiveRegistry& registry, Options options)
    : loop_(loop),
      steady_(steady),
      store_(store),
      registry_(registry),
      options_(std::move(options)),
      // Two seconds' worth at once, so that a page that asks for much is not sent away.
      requests_({.per_second = options_.rate, .burst = std::max(1.0, 2 * options_.rate)},
                kCallersMax),
      failed_keys_({.per_second = 1, .burst = kFailedKeysBurst}, kCallersMax),
      streams_(std::make_shared<Open>(
          Open{.all_max = kStreamsMax,
               .each_max = kStreamsPerCaller,
               .type = "streams",
               .too_many = "too many open streams; close one, or use ?wait="})),
      waits_(std::make_shared<Open>(
          Open{.all_max = kWaitsMax,
               .each_max = kWaitsPerCaller,
               .type = "waits",
               .too_many = "too many long-poll requests; retry later, or without ?wait="})) {}

Gate::~Gate() {
  if (watch_timer_) loop_.forget(*watch_timer_);
}

ApiResponse Gate::too_much(std::string_view type, const std::string& what, Duration wait) const {
  if (options_.rejected) options_.rejected(type);
  ApiResponse response = refusal({Code::rate_limited, what});
  response.retry_after = wait;
  return response;
}

void Gate::with_keys(Still then) {
  if (const auto age = registry_.age(); age && *age <= kKeysAge) return then({});
  // Whichever comes first: the store's answer, or the end of our patience.
  struct Waiting {
    Still then;
    std::optional<async::TimerId> timer;
  };
  auto waiting = std::make_shared<Waiting>();
  waiting->then = std::move(then);
  const auto answer = [this, waiting](const Status& read) {
    if (!waiting->then) return;
    if (waiting->timer) loop_.forget(*std::exchange(waiting->timer, std::nullopt));
    const auto age = registry_.age();
    const bool known = read || (age && *age <= kKeysAgeMax);
    auto go_on = std::exchange(waiting->then, nullptr);
    if (known) return go_on({});
    go_on(fail(Code::unavailable, "API keys cannot be loaded: " + read.error().message));
  };
  waiting->timer = loop_.after(kKeysWait, [waiting, answer] {
    waiting->timer.reset();
    answer(fail(Code::unavailable, "the store timed out"));
  });
  registry_.within(kKeysAge, answer);
}

void Gate::knock(Knock knock, Then then) {
  if (knock.open) {
    // Says more to whoever has a key; by what is known already, so that it answers whatever the store does.
    if (!asks_for_keys() && options_.open_without_keys) {
      return then(Pass{.role = Role::admin, .key = {}, .by = {}, .caller = knock.address});
    }
    if (auto pass = pass_of(knock.authorization.value_or(""))) return then(*std::move(pass));
    return then(within_rate({.role = Role::nobody, .key = {}, .by = {}, .caller = knock.address}));
  }
  with_keys([this, knock = std::move(knock), then = std::move(then)](Status known) mutable {
    const bool enough = known || (knock.of_process && registry_.age());
    if (!enough) return then(std::unexpected(refusal(known.error())));
    then(judge(knock));
  });
}

std::expected<Pass, ApiResponse> Gate::judge(const Knock& knock) {
  closed_ = asks_for_keys();
  if (!closed_ && options_.open_without_keys) {
    Pass us{.role = Role::admin, .key = {}, .by = {}, .caller = knock.address};
    if (!options_.limits_us) return us;
    return within_rate(std::move(us));
  }
  if (!knock.authorization) return std::unexpected(refusal(no_key()));
  auto pass = pass_of(*knock.authorization);
  if (pass) return within_rate(*std::move(pass));
  // A key that counts always comes in: nobody can shut others out by sending wrong ones from their address.
  if (const auto wait = failed_keys_.take(knock.address, steady_.since_start())) {
    return std::unexpected(
        too_much("failed_keys", "too many invalid API keys from this address", *wait));
  }
  return std::unexpected(refusal(token_of(*knock.authorization).empty() ? no_token() : bad_key()));
}

std::expected<Pass, ApiResponse> Gate::within_rate(Pass pass) {
  if (options_.rate <= 0) return pass;
  const auto wait = requests_.take(pass.caller, steady_.since_start());
  if (!wait) return pass;
  return std::unexpected(
      too_much("requests",
               "rate limit exceeded: " + std::to_string(std::llround(options_.rate)) +
                   " requests a second from one key or address",
               *wait));
}

std::expected<std::shared_ptr<void>, ApiResponse> Gate::stream(const Pass& pass) {
  return one_more(streams_, pass);
}

std::expected<std::shared_ptr<void>, ApiResponse> Gate::wait(const Pass& pass) {
  return one_more(waits_, pass);
}

std::expected<std::shared_ptr<void>, ApiResponse> Gate::one_more(const std::shared_ptr<Open>& open,
                                                                 const Pass& pass) {
  // Without a key it is us: nobody is there from whom something must be kept.
  const bool has_share = !pass.key.empty() || options_.limits_us;
  std::size_t& theirs = open->of[pass.caller];
  if (open->all >= open->all_max || (has_share && theirs >= open->each_max)) {
    if (theirs == 0) open->of.erase(pass.caller);
    return std::unexpected(too_much(open->type, open->too_many, std::chrono::seconds(1)));
  }
  ++theirs;
  ++open->all;
  return std::shared_ptr<void>(nullptr, [open, caller = pass.caller](void*) {
    --open->all;
    if (--open->of[caller] == 0) open->of.erase(caller);
  });
}

std::optional<Pass> Gate::pass_of(std::string_view authorization) const {
  const auto text = key_from_text(token_of(authorization));
  if (!text) return std::nullopt;
  const store::ApiKey* const key = registry_.registry().key(text->id);
  // A hash is made and compared also when there is no such key.
  const bool fits =
      same(hash_of_secret(text->secret), key != nullptr ? key->secret_hash : Hash()) &&
      key != nullptr;
  if (!fits || !key->is_live(store_.now())) return std::nullopt;
  const auto role = role_from_text(key->role);
  if (!role) return std::nullopt;  // of a newer version
  return Pass{.role = *role,
              .key = key->id,
              .by = "key:" + key->id + (key->name.empty() ? "" : " " + key->name),
              .caller = key->id};
}

void Gate::look_again(const Pass& pass, Still then) {
  with_keys([this, pass, then = std::move(then)](Status known) mutable {
    if (known) known = still(pass);
    then(std::move(known));
  });
}

bool Gate::may_now(const Pass& pass) {
  const auto age = registry_.age();
  return age && *age <= kKeysAgeMax && still(pass);
}

Status Gate::still(const Pass& pass) {
  closed_ = asks_for_keys();
  if (pass.role == Role::nobody) return {};
  if (pass.key.empty()) {
    return closed_ ? Status(std::unexpected(no_key())) : Status();
  }
  const store::ApiKey* const key = registry_.registry().key(pass.key);
  if (key == nullptr || !key->is_live(store_.now())) return std::unexpected(bad_key());
  return {};
}

std::shared_ptr<void> Gate::watch(const Pass& pass, Gone gone) {
  auto watched = std::make_shared<Watched>(Watched{.pass = pass, .gone = std::move(gone)});
  watched_.push_back(watched);
  watch_on();
  return watched;
}

void Gate::watch_on() {
  std::erase_if(watched_, [](const auto& weak) { return weak.expired(); });
  if (watching_ || watched_.empty()) return;
  watching_ = true;
  watch_timer_ = loop_.after(kWatchEvery, [this] {
    watch_timer_.reset();
    registry_.within(kWatchEvery, [this, alive = std::weak_ptr(alive_)](const Status& read) {
      if (!alive.lock()) return;
      watching_ = false;
      if (read) look_at_watched();
      watch_on();
    });
  });
}

void Gate::look_at_watched() {
  const auto all = watched_;  // who hears that it is gone may end others
  for (const auto& weak : all) {
    const auto watched = weak.lock();
    if (!watched || !watched->gone) continue;
    if (const Status may = still(watched->pass); !may) {
      std::exchange(watched->gone, nullptr)(may.error());
    }
  }
}

bool Gate::has_live_key() const {
  return std::ranges::any_of(registry_.registry().keys(), [this](const auto& entry) {
    return entry.second.is_live(store_.now()) && role_from_text(entry.second.role);
  });
}

}  // namespace ae::api
