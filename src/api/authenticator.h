// Authenticator: who may ask over the network, and as whom.
//
// Without keys everybody who can connect is us: such a server is reached from this machine only. Once there are keys each
// request says its own, and the gate never opens again by itself. A revoked key counts for kKeysAge at most, in every
// process; when the store does not tell, nobody comes in (health and ready stay open). Who asks too much is sent away
// for a while; what is remembered for that has a bound.
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
#include "async/loop.h"

namespace ae::api {

// What is known of keys is read again when it is older.
constexpr Duration kKeysAge = std::chrono::milliseconds(500);
// … and while the store does not answer, counts for so long.
constexpr Duration kKeysAgeMax = std::chrono::seconds(1);
// So long a request waits for the store to tell.
constexpr Duration kKeysWait = std::chrono::seconds(5);

// So often the keys of those who stay are looked at: a revoked one is seen at the second look at the latest.
constexpr Duration kWatchEvery = std::chrono::milliseconds(400);

// Keys that do not count, from one address: so many at once, then one a second.
constexpr double kFailedKeysBurst = 20;
constexpr std::size_t kStreamsMax = 512;       // live streams at once
constexpr std::size_t kStreamsPerCaller = 64;  // … of one key, or address
constexpr std::size_t kWaitsMax = 1'000;       // requests that wait (?wait=) at once
constexpr std::size_t kWaitsPerCaller = 256;   // … of one key, or address
constexpr std::size_t kCallersMax = 10'000;    // keys and addresses whose requests are counted
constexpr double kRateDefault = 200;           // requests a second of one key

// `aek_<id>_<secret>`: 12 and 64 hex digits.
struct KeyText {
  std::string id;
  std::string secret;
};
std::string to_text(const KeyText& key);
std::optional<KeyText> key_from_text(std::string_view text);
// What is kept of a secret. It is drawn, 256 bits of it, so nobody can try them all: no slow hash is needed.
Hash hash_of_secret(std::string_view secret);

struct Credentials {
  std::optional<std::string> authorization;  // the header
  std::string address;                       // who connects, without port
  bool open = false;                         // the route asks nobody for a key
  // The route tells of this process and nothing of the store: the keys that were read last count while the store is away.
  bool is_process_route = false;
};

struct Principal {
  Role role = Role::none;
  std::string key;     // its id; "" = none was asked for
  std::string by;      // who acts, for the record; "" = nobody known
  std::string caller;  // whose limits count: a key, or an address
};

class Authenticator {
 public:
  struct Options {
    bool allow_without_keys = false;  // as long as there never were any, everybody is admin
    double rate = kRateDefault;       // requests a second of one caller; 0 = no limit
    bool limit_keyless = false;       // also of those who come in without a key
    std::function<void(std::string_view type)> rejected = {};  // to be counted; may be empty
  };
  using Then = std::move_only_function<void(std::expected<Principal, ApiResponse>)>;
  using StatusCallback = std::move_only_function<void(Status)>;
  using RevokedCallback = std::move_only_function<void(const Error&)>;

  // Borrows all.
  Authenticator(async::Loop& loop, async::SteadyClock& steady, store::Store& store,
                RegistryCache& registry, Options options);
  ~Authenticator();

  // Lets in, or gives the answer: 401 `unauthorized`, 429 `rate_limited`, 503 `unavailable`. Perhaps inside this call.
  void authenticate(Credentials credentials, Then then);
  // Does who came in so still may, now that what they waited for is ready? Fails with unauthorized, unavailable.
  void revalidate(const Principal& principal, StatusCallback then);
  // The same at once, by keys that were read within kKeysAgeMax. False also when they are older: revalidate tells more.
  bool is_valid_now(const Principal& principal);
  // Calls `on_revoked` once, when who came in so may no longer: within a second after the store says so, and not when the store says
  // nothing. For as long as what is given back is kept.
  [[nodiscard]] std::shared_ptr<void> watch(const Principal& principal, RevokedCallback on_revoked);
  // The right to one live stream, or to one request that waits, for as long as it is kept; or the answer, 429 `rate_limited`.
  std::expected<std::shared_ptr<void>, ApiResponse> acquire_stream(const Principal& principal);
  std::expected<std::shared_ptr<void>, ApiResponse> acquire_wait(const Principal& principal);
  // Is there a key that lets somebody in? By what was read last.
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
  bool had_keys_ = false;  // there were keys once
  RateLimiter requests_, failed_keys_;
  // What is open at once, by caller.
  struct ConcurrencyLimit {
    std::size_t all_max, each_max;
    std::string_view type;  // under which a refusal is counted
    std::string too_many;
    std::size_t all = 0;
    std::map<std::string, std::size_t, std::less<>> of = {};
  };
  std::expected<std::shared_ptr<void>, ApiResponse> acquire_slot(
      const std::shared_ptr<ConcurrencyLimit>& open, const Principal& principal);
  std::shared_ptr<ConcurrencyLimit> streams_, waits_;  // shared with those that are open
  struct WatchedPrincipal {
    Principal principal;
    RevokedCallback on_revoked;
  };
  std::vector<std::weak_ptr<WatchedPrincipal>> watched_;
  std::optional<async::TimerId> watch_timer_;
  bool watching_ = false;  // the timer stands, or the keys are being read
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ae::api
