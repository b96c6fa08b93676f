// Checks the key in the header against the registry.
#include "api/authenticator.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "api/problem.h"

namespace ae::api {
namespace {

constexpr std::string_view kPrefix = "aek_";
constexpr std::size_t kIdSize = 12, kSecretSize = 64;

// Takes the same time wherever the first difference is.
bool equal_in_constant_time(const Hash& a, const Hash& b) {
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

// The token of `Bearer TOKEN`; "" if there is none.
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

Error key_required_error() {
  return {Code::unauthorized,
          "authentication required: send `Authorization: Bearer aek_…`; for commands set "
          "AETHERIS_API_KEY"};
}

// One message for every invalid key, so that key ids cannot be probed.
Error invalid_key_error() {
  return {Code::unauthorized, "the API key is unknown, expired or revoked"};
}

Error missing_token_error() {
  return {Code::unauthorized, "send the header as `Authorization: Bearer aek_…`"};
}

ApiResponse problem_response(const Error& error) {
  return {.status = http_status(error.code), .body = problem(error), .location = {}, .text = {}};
}

}  // namespace

std::string to_text(const KeyText& key) {
  return fmt::format("{}{}_{}", kPrefix, key.id, key.secret);
}

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

Authenticator::Authenticator(async::Loop& loop, async::SteadyClock& steady, store::Store& store,
                             RegistryCache& registry, Options options)
    : loop_(loop),
      steady_(steady),
      store_(store),
      registry_(registry),
      options_(std::move(options)),
      // A burst of two seconds' worth, so that a page that sends many requests is not rejected.
      requests_({.per_second = options_.rate, .burst = std::max(1.0, 2 * options_.rate)},
                kCallersMax),
      failed_keys_({.per_second = 1, .burst = kFailedKeysBurst}, kCallersMax),
      streams_(std::make_shared<ConcurrencyLimit>(
          ConcurrencyLimit{.all_max = kStreamsMax,
                           .each_max = kStreamsPerCaller,
                           .type = "streams",
                           .too_many = "too many open streams; close one, or use ?wait="})),
      waits_(std::make_shared<ConcurrencyLimit>(ConcurrencyLimit{
          .all_max = kLongPollsMax,
          .each_max = kLongPollsPerCaller,
          .type = "waits",
          .too_many = "too many long-poll requests; retry later, or without ?wait="})) {}

Authenticator::~Authenticator() {
  if (watch_timer_) loop_.cancel(*watch_timer_);
}

ApiResponse Authenticator::rate_limited_response(std::string_view type, const std::string& what,
                                                 Duration wait) const {
  if (options_.on_rejected) options_.on_rejected(type);
  ApiResponse response = problem_response({Code::rate_limited, what});
  response.retry_after = wait;
  return response;
}

void Authenticator::with_fresh_keys(StatusCallback then) {
  if (const auto age = registry_.age(); age && *age <= kKeyCacheTtl) return then({});
  // The store's response or the timeout, whichever comes first.
  struct KeyWait {
    StatusCallback then;
    std::optional<async::TimerId> timer;
  };
  auto key_wait = std::make_shared<KeyWait>();
  key_wait->then = std::move(then);
  const auto answer = [this, key_wait](const Status& read) {
    if (!key_wait->then) return;
    if (key_wait->timer) loop_.cancel(*std::exchange(key_wait->timer, std::nullopt));
    const auto age = registry_.age();
    const bool known = read || (age && *age <= kKeyCacheTtlMax);
    auto when_loaded = std::exchange(key_wait->then, nullptr);
    if (known) return when_loaded({});
    when_loaded(fail(Code::unavailable, "API keys cannot be loaded: {}", read.error().message));
  };
  key_wait->timer = loop_.after(kKeyLoadTimeout, [key_wait, answer] {
    key_wait->timer.reset();
    answer(fail(Code::unavailable, "the store timed out"));
  });
  registry_.refresh_if_older(kKeyCacheTtl, answer);
}

void Authenticator::authenticate(Credentials credentials, Then then) {
  if (credentials.open) {
    // A key gives access to more details. Only cached keys are used, so that the response does not
    // depend on the store.
    if (!requires_keys() && options_.allow_without_keys) {
      return then(
          Principal{.role = Role::admin, .key = {}, .by = {}, .caller = credentials.address});
    }
    if (auto principal = find_principal(credentials.authorization.value_or("")))
      return then(*std::move(principal));
    return then(
        within_rate({.role = Role::none, .key = {}, .by = {}, .caller = credentials.address}));
  }
  with_fresh_keys(
      [this, credentials = std::move(credentials), then = std::move(then)](Status known) mutable {
        const bool enough = known || (credentials.is_process_route && registry_.age());
        if (!enough) return then(std::unexpected(problem_response(known.error())));
        then(authenticate_key(credentials));
      });
}

std::expected<Principal, ApiResponse> Authenticator::authenticate_key(
    const Credentials& credentials) {
  had_keys_ = requires_keys();
  if (!had_keys_ && options_.allow_without_keys) {
    Principal us{.role = Role::admin, .key = {}, .by = {}, .caller = credentials.address};
    if (!options_.limit_keyless) return us;
    return within_rate(std::move(us));
  }
  if (!credentials.authorization) return std::unexpected(problem_response(key_required_error()));
  auto principal = find_principal(*credentials.authorization);
  if (principal) return within_rate(*std::move(principal));
  // A valid key is always accepted: a client cannot lock others out by sending wrong keys from
  // their address.
  if (const auto wait = failed_keys_.try_acquire(credentials.address, steady_.since_start())) {
    return std::unexpected(
        rate_limited_response("failed_keys", "too many invalid API keys from this address", *wait));
  }
  return std::unexpected(problem_response(
      token_of(*credentials.authorization).empty() ? missing_token_error() : invalid_key_error()));
}

std::expected<Principal, ApiResponse> Authenticator::within_rate(Principal principal) {
  if (options_.rate <= 0) return principal;
  const auto wait = requests_.try_acquire(principal.caller, steady_.since_start());
  if (!wait) return principal;
  return std::unexpected(rate_limited_response(
      "requests",
      fmt::format("rate limit exceeded: {} requests a second from one key or address",
                  std::llround(options_.rate)),
      *wait));
}

std::expected<std::shared_ptr<void>, ApiResponse> Authenticator::acquire_stream(
    const Principal& principal) {
  return acquire_slot(streams_, principal);
}

std::expected<std::shared_ptr<void>, ApiResponse> Authenticator::acquire_wait(
    const Principal& principal) {
  return acquire_slot(waits_, principal);
}

std::expected<std::shared_ptr<void>, ApiResponse> Authenticator::acquire_slot(
    const std::shared_ptr<ConcurrencyLimit>& open, const Principal& principal) {
  // Without a key the client is our own user: it has no share of its own.
  const bool has_share = !principal.key.empty() || options_.limit_keyless;
  std::size_t& caller_slots = open->of[principal.caller];
  if (open->all >= open->all_max || (has_share && caller_slots >= open->each_max)) {
    if (caller_slots == 0) open->of.erase(principal.caller);
    return std::unexpected(
        rate_limited_response(open->type, open->too_many, std::chrono::seconds(1)));
  }
  ++caller_slots;
  ++open->all;
  return std::shared_ptr<void>(nullptr, [open, caller = principal.caller](void*) {
    --open->all;
    if (--open->of[caller] == 0) open->of.erase(caller);
  });
}

std::optional<Principal> Authenticator::find_principal(std::string_view authorization) const {
  const auto text = key_from_text(token_of(authorization));
  if (!text) return std::nullopt;
  const store::ApiKey* const key = registry_.registry().key(text->id);
  // A hash is computed and compared even if the key does not exist.
  const bool fits = equal_in_constant_time(hash_of_secret(text->secret),
                                           key != nullptr ? key->secret_hash : Hash()) &&
                    key != nullptr;
  if (!fits || !key->is_live(store_.now())) return std::nullopt;
  const auto role = role_from_text(key->role);
  if (!role) return std::nullopt;  // of a newer version
  return Principal{
      .role = *role,
      .key = key->id,
      .by = fmt::format("key:{}{}{}", key->id, key->name.empty() ? "" : " ", key->name),
      .caller = key->id};
}

void Authenticator::revalidate(const Principal& principal, StatusCallback then) {
  with_fresh_keys([this, principal, then = std::move(then)](Status known) mutable {
    if (known) known = check_principal(principal);
    then(std::move(known));
  });
}

bool Authenticator::is_valid_now(const Principal& principal) {
  const auto age = registry_.age();
  return age && *age <= kKeyCacheTtlMax && check_principal(principal);
}

Status Authenticator::check_principal(const Principal& principal) {
  had_keys_ = requires_keys();
  if (principal.role == Role::none) return {};
  if (principal.key.empty()) {
    return had_keys_ ? Status(std::unexpected(key_required_error())) : Status();
  }
  const store::ApiKey* const key = registry_.registry().key(principal.key);
  if (key == nullptr || !key->is_live(store_.now())) return std::unexpected(invalid_key_error());
  return {};
}

std::shared_ptr<void> Authenticator::watch(const Principal& principal, RevokedCallback on_revoked) {
  auto watched = std::make_shared<WatchedPrincipal>(
      WatchedPrincipal{.principal = principal, .on_revoked = std::move(on_revoked)});
  watched_.push_back(watched);
  schedule_watch();
  return watched;
}

void Authenticator::schedule_watch() {
  std::erase_if(watched_, [](const auto& weak) { return weak.expired(); });
  if (watching_ || watched_.empty()) return;
  watching_ = true;
  watch_timer_ = loop_.after(kRevocationPoll, [this] {
    watch_timer_.reset();
    registry_.refresh_if_older(kRevocationPoll, [this, alive = alive_.watch()](const Status& read) {
      if (!alive) return;
      watching_ = false;
      if (read) check_watched();
      schedule_watch();
    });
  });
}

void Authenticator::check_watched() {
  const auto all = watched_;  // a callback may remove others
  for (const auto& weak : all) {
    const auto watched = weak.lock();
    if (!watched || !watched->on_revoked) continue;
    if (const Status may = check_principal(watched->principal); !may) {
      std::exchange(watched->on_revoked, nullptr)(may.error());
    }
  }
}

bool Authenticator::has_live_key() const {
  return std::ranges::any_of(registry_.registry().keys(), [this](const auto& entry) {
    return entry.second.is_live(store_.now()) && role_from_text(entry.second.role);
  });
}

}  // namespace ae::api
