// Gate: who may ask over the network, and as whom.
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
#include "api/buckets.h"
#include "api/live_registry.h"
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

struct Knock {
  std::optional<std::string> authorization;  // the header
  std::string address;                       // who connects, without port
  bool open = false;                         // the route asks nobody for a key
  // The route tells of this process and nothing of the store: the keys that were read last count while the store is away.
  bool of_process = false;
};

struct Pass {
  Role role = Role::nobody;
  std::string key;     // its id; "" = none was asked for
  std::string by;      // who acts, for the record; "" = nobody known
  std::string caller;  // whose limits count: a key, or an address
};

class Gate {
 public:
  struct Options {
    bool open_without_keys = false;  // as long as there never were any, everybody is admin
    double rate = kRateDefault;      // requests a second of one caller; 0 = no limit
    bool limits_us = false;          // also of those who come in without a key
    std::function<void(std::string_view type)> rejected = {};  // to be counted; may be empty
  };
  using Then = std::move_only_function<void(std::expected<Pass, ApiResponse>)>;
  using Still = std::move_only_function<void(Status)>;
  using Gone = std::move_only_function<void(const Error&)>;

  // Borrows all.
  Gate(async::Loop& loop, async::SteadyClock& steady, store::Store& store, LiveRegistry& registry,
       Options options);
  ~Gate();

  // Lets in, or gives the answer: 401 `unauthorized`, 429 `rate_limited`, 503 `unavailable`. Perhaps inside this call.
  void knock(Knock knock, Then then);
  // Does who came in so still may, now that what they waited for is ready? Fails with unauthorized, unavailable.
  void look_again(const Pass& pass, Still then);
  // The same at once, by keys that were read within kKeysAgeMax. False also when they are older: look_again tells more.
  bool may_now(const Pass& pass);
  // Calls `gone` once, when who came in so may no longer: within a second after the store says so, and not when the store says
  // nothing. For as long as what is given back is kept.
  [[nodiscard]] std::shared_ptr<void> watch(const Pass& pass, Gone gone);
  // The right to one live stream, or to one request that waits, for as long as it is kept; or the answer, 429 `rate_limited`.
  std::expected<std::shared_ptr<void>, ApiResponse> stream(const Pass& pass);
  std::expected<std::shared_ptr<void>, ApiResponse> wait(const Pass& pass);
  // Is there a key that lets somebody in? By what was read last.
  bool has_live_key() const;
  bool asks_for_keys() const { return closed_ || !registry_.registry().keys().empty(); }

 private:
  std::expected<Pass, ApiResponse> judge(const Knock& knock);
  std::expected<Pass, ApiResponse> within_rate(Pass pass);
  std::optional<Pass> pass_of(std::string_view authorization) const;
  Status still(const Pass& pass);
  void with_keys(Still then);
  void watch_on();
  void look_at_watched();
  ApiResponse too_much(std::string_view type, const std::string& what, Duration wait) const;

  async::Loop& loop_;
  async::SteadyClock& steady_;
  store::Store& store_;
  LiveRegistry& registry_;
  const Options options_;
  bool closed_ = false;  // there were keys once
  Buckets requests_, failed_keys_;
  // What is open at once, by caller.
  struct Open {
    std::size_t all_max, each_max;
    std::string_view type;  // under which a refusal is counted
    std::string too_many;
    std::size_t all = 0;
    std::map<std::string, std::size_t, std::less<>> of = {};
  };
  std::expected<std::shared_ptr<void>, ApiResponse> one_more(const std::shared_ptr<Open>& open,
                                                             const Pass& pass);
  std::shared_ptr<Open> streams_, waits_;  // shared with those that are open
  struct Watched {
    Pass pass;
    Gone gone;
  };
  std::vector<std::weak_ptr<Watched>> watched_;
  std::optional<async::TimerId> watch_timer_;
  bool watching_ = false;  // the timer stands, or the keys are being read
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace ae::api
