// Authenticator: maps a network request to a principal.
//
// Without API keys every client is trusted, so the server listens on loopback only. Once a key
// exists, every request must carry one, also after all keys are revoked. A revoked key stops
// working within kKeyCacheTtl in every process. If the store does not respond, cached keys are used
// for at most kKeyCacheTtlMax; then requests are rejected (health and ready stay open). Clients
// over the rate limit get 429; the number of tracked clients is bounded.
// Threads: the loop's. See docs/security.md.
#pragma once

#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "api/api.h"
#include "api/rate_limiter.h"
#include "api/registry_cache.h"
#include "api/roles.h"
#include "async/alive.h"
#include "async/loop.h"

namespace ae::api {

// Cached keys are reloaded after this.
constexpr Duration kKeyCacheTtl = std::chrono::milliseconds(500);
// Cached keys are used for at most this long while the store does not respond.
constexpr Duration kKeyCacheTtlMax = std::chrono::seconds(1);
// How long a request waits for the store to load the keys.
constexpr Duration kKeyLoadTimeout = std::chrono::seconds(5);

// How often the keys of open streams are rechecked: a revoked key is detected by the second check
// at the latest.
constexpr Duration kRevocationPoll = std::chrono::milliseconds(400);

// Invalid keys from one address: this burst, then one a second.
constexpr double kFailedKeysBurst = 20;
constexpr std::size_t kStreamsMax = 512;          // concurrent live streams
constexpr std::size_t kStreamsPerCaller = 64;     // … of one key or address
constexpr std::size_t kLongPollsMax = 1'000;      // concurrent requests with ?wait=
constexpr std::size_t kLongPollsPerCaller = 256;  // … of one key or address
constexpr std::size_t kCallersMax = 10'000;       // keys and addresses with a rate limit
constexpr double kRateDefault = 200;              // requests a second, per key

// `aek_<id>_<secret>`: 12 and 64 hex digits.
struct KeyText {
  std::string id;
  std::string secret;
};
std::string to_text(const KeyText& key);
std::optional<KeyText> key_from_text(std::string_view text);
// The stored form of a secret. It has 256 random bits, so brute force is infeasible and no slow
// hash is needed.
Hash hash_of_secret(std::string_view secret);

struct Credentials {
  std::optional<std::string> authorization;  // the header
  std::string address;                       // of the client, without port
  bool open = false;                         // the route needs no key
  // The route is about this process only and reveals no data of the store: the last loaded keys
  // stay valid while the store is down.
  bool is_process_route = false;
};

struct Principal {
  Role role = Role::none;
  std::string key;     // its id; "" = no key was required
  std::string by;      // the actor, for the audit log and events; "" = unknown
  std::string caller;  // the key or address whose limits apply
};

class Authenticator {
 public:
  struct Options {
    bool allow_without_keys = false;  // while no key ever existed, every client is admin
    double rate = kRateDefault;       // requests a second, per caller; 0 = no limit
    bool limit_keyless = false;       // rate-limit clients without a key, too
    std::function<void(std::string_view type)> on_rejected = {};  // counts rejections; may be empty
  };
  using Then = std::move_only_function<void(std::expected<Principal, ApiResponse>)>;
  using StatusCallback = std::move_only_function<void(Status)>;
  using RevokedCallback = std::move_only_function<void(const Error&)>;

  // Borrows all arguments.
  Authenticator(async::Loop& loop, async::SteadyClock& steady, store::Store& store,
                RegistryCache& registry, Options options);
  ~Authenticator();

  // Gives the principal, or the response: 401 `unauthorized`, 429 `rate_limited`, 503
  // `unavailable`. May call `then` inside this call.
  void authenticate(Credentials credentials, Then then);
  // Rechecks a principal after its request has waited. Fails with unauthorized, unavailable.
  void revalidate(const Principal& principal, StatusCallback then);
  // The same without a read, by keys loaded within kKeyCacheTtlMax. False also when they are older:
  // `revalidate` reloads them.
  bool is_valid_now(const Principal& principal);
  // Calls `on_revoked` once, within a second after the key is revoked in the store; not while the
  // store does not respond. Active for as long as the returned handle is kept.
  [[nodiscard]] std::shared_ptr<void> watch(const Principal& principal, RevokedCallback on_revoked);
  // The right to one live stream, or to one waiting request, for as long as the handle is kept; or
  // the response, 429 `rate_limited`.
  std::expected<std::shared_ptr<void>, ApiResponse> acquire_stream(const Principal& principal);
  std::expected<std::shared_ptr<void>, ApiResponse> acquire_wait(const Principal& principal);
  // Is a cached key live?
  bool has_live_key() const;
  bool requires_keys() const { return had_keys_ || !registry_.registry().keys().empty(); }

 private:
  std::expected<Principal, ApiResponse> authenticate_key(const Credentials& credentials);
  std::expected<Principal, ApiResponse> within_rate(Principal principal);
  std::optional<Principal> find_principal(std::string_view authorization) const;
  Status check_principal(const Principal& principal);
  void with_fresh_keys(StatusCallback then);
  void schedule_watch();
  void check_watched();
  ApiResponse rate_limited_response(std::string_view type, const std::string& what,
                                    Duration wait) const;

  async::Loop& loop_;
  async::SteadyClock& steady_;
  store::Store& store_;
  RegistryCache& registry_;
  const Options options_;
  bool had_keys_ = false;  // a key existed before
  RateLimiter requests_, failed_keys_;
  // Counts open streams or waits, by caller.
  struct ConcurrencyLimit {
    std::size_t all_max, each_max;
    std::string_view type;  // counts a refusal under this type
    std::string too_many;
    std::size_t all = 0;
    std::map<std::string, std::size_t, std::less<>> of = {};
  };
  std::expected<std::shared_ptr<void>, ApiResponse> acquire_slot(
      const std::shared_ptr<ConcurrencyLimit>& open, const Principal& principal);
  std::shared_ptr<ConcurrencyLimit> streams_, waits_;  // shared with open handles
  struct WatchedPrincipal {
    Principal principal;
    RevokedCallback on_revoked;
  };
  std::vector<std::weak_ptr<WatchedPrincipal>> watched_;
  std::optional<async::TimerId> watch_timer_;
  bool watching_ = false;  // the timer is set, or the keys are being read
  async::Alive alive_;
};

}  // namespace ae::api
