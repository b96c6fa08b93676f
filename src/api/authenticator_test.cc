// Tests of Authenticator: accepted keys, how soon a revocation takes effect, and an unavailable
// store.
#include "api/authenticator.h"

#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "json/json.h"
#include "store/faulty/faulty_store.h"
#include "store/memory/memory_store.h"
#include "testing/test.h"
#include "testing/test_loop.h"

namespace ae::api {
namespace {

constexpr Duration kMoment = std::chrono::milliseconds(1);
const std::string kSecret(64, 'a');

class Steady final : public async::SteadyClock {
 public:
  explicit Steady(testing::TestLoop& loop) : loop_(loop) {}
  Duration since_start() override { return loop_.now() - testing::TestLoop::kStart; }

 private:
  testing::TestLoop& loop_;
};

// A store that can fail on request, and a process with an authenticator.
struct AuthFixture {
  testing::TestLoop loop;
  Steady steady{loop};
  store::MemoryStore memory{loop, loop};
  std::optional<store::Fault> fault;  // of each read
  std::size_t reads = 0;
  store::FaultyStore store{loop, memory, {.script = [this](const store::Call& call) {
                             if (call.method != store::Method::read_audit_log)
                               return store::Fault::none;
                             ++reads;
                             return fault.value_or(store::Fault::none);
                           }}};
  std::vector<std::string> warnings;
  RegistryCache registry{steady, store, [this](const std::string& w) { warnings.push_back(w); }};
  std::map<std::string, int, std::less<>> rejected;
  Authenticator authenticator{
      loop,
      steady,
      store,
      registry,
      {.allow_without_keys = true, .rate = 10, .on_rejected = [this](std::string_view type) {
         ++rejected[std::string(type)];
       }}};

  AuthFixture() {
    Status read = loop.await<Status>(
        [&](auto done) { registry.refresh_if_older(Duration(0), std::move(done)); });
    AE_CHECK(read.has_value(), "the registry is read at the start");
  }
  void record(const store::AuditEntry& entry) {
    const auto done = loop.await<Result<void>>(
        [&](auto answer) { memory.append_audit_entry(entry, std::move(answer)); });
    AE_CHECK(done.has_value(), "recorded");
  }
  // As by another process: this one gets no notification.
  std::string make(const std::string& id, std::string_view role,
                   std::optional<Duration> expires = {}) {
    store::ApiKey key{.id = id,
                      .secret_hash = hash_of_secret(kSecret),
                      .role = std::string(role),
                      .name = "n",
                      .created_by = "ada",
                      .revoked_by = {},
                      .created_at = loop.now()};
    if (expires) key.expires_at = loop.now() + *expires;
    record(store::key_created(key));
    return "Bearer " + to_text(KeyText{id, kSecret});
  }
  void revoke(const std::string& id) { record(store::key_revoked(id, loop.now(), "ada")); }

  using Answer = std::expected<Principal, ApiResponse>;
  Answer authenticate(std::optional<std::string> authorization = {}, bool open = false) {
    return loop.await<Answer>([&](auto done) {
      authenticator.authenticate({.authorization = authorization, .address = address, .open = open},
                                 std::move(done));
    });
  }
  std::string address = "127.0.0.1";
  int status(std::optional<std::string> authorization = {}) {
    const Answer answer = authenticate(std::move(authorization));
    return answer ? 200 : answer.error().status;
  }
};

AE_TEST("gate/a key is its id and its secret, in one form only") {
  const KeyText key{"0123456789ab", kSecret};
  const std::string text = to_text(key);
  ASSERT_TRUE(key_from_text(text));
  EXPECT_EQ(key_from_text(text)->id, key.id);
  EXPECT_EQ(key_from_text(text)->secret, key.secret);
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string bad = text;
    bad[i] = 'G';
    EXPECT_FALSE(key_from_text(bad)) << bad;
    EXPECT_FALSE(key_from_text(text.substr(0, i))) << i;
  }
  EXPECT_FALSE(key_from_text(text + "a"));
}

AE_TEST(
    "gate/without keys everybody is us; the first key closes it, also when another process made "
    "it") {
  AuthFixture fixture;
  EXPECT_EQ(fixture.authenticate()->role, Role::admin);
  const std::string key = fixture.make("000000000001", "viewer");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  EXPECT_EQ(fixture.status(), 401);
  const auto principal = fixture.authenticate(key);
  ASSERT_TRUE(principal);
  EXPECT_EQ(principal->role, Role::viewer);
  EXPECT_EQ(principal->by, "key:000000000001 n");
}

AE_TEST("gate/where others can connect nobody comes in without a key") {
  AuthFixture fixture;
  Authenticator authenticator(fixture.loop, fixture.steady, fixture.store, fixture.registry,
                              {.allow_without_keys = false});
  const auto answer = fixture.loop.await<AuthFixture::Answer>([&](auto done) {
    authenticator.authenticate({.authorization = {}, .address = "10.0.0.1"}, std::move(done));
  });
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().status, 401);
}

AE_TEST("gate/whatever is wrong with a key is told in the same words") {
  AuthFixture fixture;
  const std::string good = fixture.make("000000000001", "admin");
  const std::string expired = fixture.make("000000000002", "admin", std::chrono::seconds(1));
  const std::string revoked = fixture.make("000000000003", "admin");
  const std::string newer = fixture.make("000000000004", "emperor");
  fixture.revoke("000000000003");
  fixture.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(fixture.status(good), 200);
  std::string other_secret = good;
  other_secret.back() = 'b';
  std::optional<std::string> first_body;
  for (const std::string& bad : {expired, revoked, newer, other_secret,
                                 std::string("Bearer ") + to_text(KeyText{"00000000000f", kSecret}),
                                 std::string("Bearer nonsense")}) {
    const auto answer = fixture.authenticate(bad);
    ASSERT_FALSE(answer) << bad;
    EXPECT_EQ(answer.error().status, 401) << bad;
    const std::string body = canonical(answer.error().body);
    if (!first_body) first_body = body;
    EXPECT_EQ(body, *first_body) << bad;
    EXPECT_EQ(body.find("aaaa"), std::string::npos);
  }
  EXPECT_EQ(fixture.status("bearer  " + good.substr(7)), 200) << "the scheme's case means nothing";
}

AE_TEST("gate/a header that holds no key is told how one is sent, whatever else it holds") {
  AuthFixture fixture;
  const std::string good = fixture.make("000000000001", "admin");
  fixture.loop.advance(std::chrono::seconds(1));
  for (const std::string& bad :
       {std::string("Bearer "), std::string("Bearer"), std::string("Basic YTpi"), good.substr(7),
        std::string("Token ") + good.substr(7), std::string()}) {
    const auto answer = fixture.authenticate(bad);
    ASSERT_FALSE(answer) << bad;
    EXPECT_EQ(answer.error().status, 401) << bad;
    const std::string body = canonical(answer.error().body);
    EXPECT_NE(body.find("`Authorization: Bearer aek_"), body.npos) << body;
    EXPECT_EQ(body.find("aaaa"), std::string::npos) << "what was sent is not said again";
  }
}

AE_TEST("gate/who stays is let go within a second of the end of their key, once, and others stay") {
  AuthFixture fixture;
  const std::string viewer = fixture.make("000000000001", "viewer");
  const std::string brief = fixture.make("000000000002", "viewer", std::chrono::seconds(20));
  const std::string other = fixture.make("000000000003", "viewer");
  fixture.loop.advance(std::chrono::seconds(1));
  std::vector<std::string> gone;
  std::vector<std::shared_ptr<void>> watched;
  for (const std::string& key : {viewer, viewer, brief, other}) {
    const auto principal = fixture.authenticate(key);
    ASSERT_TRUE(principal);
    watched.push_back(
        fixture.authenticator.watch(*principal, [&gone, id = principal->key](const Error& why) {
          EXPECT_EQ(why.code, Code::unauthorized);
          gone.push_back(id);
        }));
  }
  watched[1].reset();  // it left by itself
  fixture.loop.advance(std::chrono::seconds(10));
  EXPECT_TRUE(gone.empty());
  fixture.fault = store::Fault::fail_before;
  fixture.revoke("000000000001");
  fixture.loop.advance(std::chrono::seconds(3));
  EXPECT_TRUE(gone.empty()) << "the store says nothing";
  fixture.fault.reset();
  fixture.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(gone, std::vector<std::string>{"000000000001"});
  fixture.loop.advance(std::chrono::seconds(10));
  EXPECT_EQ(gone, (std::vector<std::string>{"000000000001", "000000000002"}));
  watched.clear();
  fixture.loop.advance(std::chrono::seconds(1));
  const std::size_t reads = fixture.reads;
  fixture.loop.advance(std::chrono::minutes(1));
  EXPECT_EQ(fixture.reads, reads) << "nobody stays, and the store is asked nothing";
}

AE_TEST("gate/who stays where there were no keys goes when the first one is made") {
  AuthFixture fixture;
  const auto principal = fixture.authenticate();
  ASSERT_TRUE(principal);
  int gone = 0;
  const auto watched = fixture.authenticator.watch(*principal, [&](const Error&) { ++gone; });
  fixture.loop.advance(std::chrono::seconds(5));
  EXPECT_EQ(gone, 0);
  fixture.make("000000000001", "admin");
  fixture.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(gone, 1);
}

AE_TEST("gate/a revoked key counts for a second at most, and the gate stays closed") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "admin");
  EXPECT_EQ(fixture.status(key), 200);
  fixture.revoke("000000000001");
  fixture.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(fixture.status(key), 401);
  EXPECT_EQ(fixture.status(), 401) << "no key is live, and it does not open";
  EXPECT_FALSE(fixture.authenticator.has_live_key());
}

AE_TEST("gate/a key expires by the store's clock, without a word of the store") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "admin", std::chrono::milliseconds(300));
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  const std::string other = fixture.make("000000000002", "admin", std::chrono::milliseconds(300));
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  EXPECT_EQ(fixture.status(key), 401);
  fixture.make("000000000003", "admin");
  EXPECT_EQ(fixture.status(other), 401);
}

AE_TEST(
    "gate/questions that come together share one reading, and those that follow soon need none") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "admin");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  const std::size_t before = fixture.reads;
  int in = 0;
  for (int i = 0; i < 15; ++i) {
    fixture.authenticator.authenticate({.authorization = key, .address = "127.0.0.1"},
                                       [&](auto principal) { in += principal ? 1 : 0; });
  }
  EXPECT_TRUE(fixture.loop.run_until([&] { return in == 15; }));
  EXPECT_EQ(fixture.status(key), 200);
  EXPECT_EQ(fixture.reads, before + 1);
}

AE_TEST(
    "gate/while the store is not available what was known counts for a second, then nobody comes "
    "in") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "admin");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  ASSERT_EQ(fixture.status(key), 200);
  fixture.fault = store::Fault::fail_before;
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  EXPECT_EQ(fixture.status(key), 200);
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  const auto closed = fixture.authenticate(key);
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().status, 503);
  EXPECT_EQ(closed.error().body.text("code"), "unavailable");
  EXPECT_EQ(fixture.status(), 503);
  EXPECT_TRUE(fixture.authenticate({}, true)) << "health is asked without a key, and answers";
  fixture.fault.reset();
  EXPECT_EQ(fixture.status(key), 200);
}

AE_TEST(
    "gate/how a process fares is told by the keys that were read last, also while the store is "
    "away") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "viewer");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  ASSERT_EQ(fixture.status(key), 200);
  fixture.fault = store::Fault::fail_before;
  fixture.loop.advance(2 * kKeyCacheTtlMax);
  const auto authenticate = [&](std::optional<std::string> shows) {
    return fixture.loop.await<AuthFixture::Answer>([&](auto done) {
      fixture.authenticator.authenticate(
          {.authorization = std::move(shows), .address = "127.0.0.1", .is_process_route = true},
          std::move(done));
    });
  };
  EXPECT_EQ(fixture.status(key), 503);
  EXPECT_TRUE(authenticate(key));
  EXPECT_EQ(authenticate({}).error().status, 401);
}

AE_TEST("gate/a store that is silent is waited for, not for ever") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "admin");
  fixture.fault = store::Fault::crash_before;  // every read fails from here on
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  std::optional<AuthFixture::Answer> answer;
  fixture.authenticator.authenticate({.authorization = key, .address = "127.0.0.1"},
                                     [&](AuthFixture::Answer a) { answer = std::move(a); });
  fixture.loop.advance(kKeyLoadTimeout - kMoment);
  EXPECT_FALSE(answer);
  fixture.loop.advance(2 * kMoment);
  ASSERT_TRUE(answer);
  ASSERT_FALSE(*answer);
  EXPECT_EQ(answer->error().status, 503);
}

AE_TEST("gate/who came in is looked at again before the answer goes out") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "viewer");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  const auto principal = fixture.authenticate(key);
  ASSERT_TRUE(principal);
  const auto again = [&](const Principal& of) {
    return fixture.loop.await<Status>(
        [&](auto done) { fixture.authenticator.revalidate(of, std::move(done)); });
  };
  EXPECT_TRUE(again(*principal));
  fixture.revoke("000000000001");
  fixture.loop.advance(std::chrono::seconds(1));
  ASSERT_FALSE(again(*principal));
  EXPECT_EQ(again(*principal).error().code, Code::unauthorized);
  EXPECT_FALSE(again(Principal{.role = Role::admin, .key = {}, .by = {}}))
      << "who came in while there were no keys";
  EXPECT_TRUE(again(Principal{})) << "who asked for what nobody needs a key for";
}

AE_TEST("gate/what asks no store is told for a second at most by keys that were read before") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "viewer");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  const auto principal = fixture.authenticate(key);
  ASSERT_TRUE(principal);
  EXPECT_TRUE(fixture.authenticator.is_valid_now(*principal));
  fixture.loop.advance(kKeyCacheTtlMax);
  EXPECT_TRUE(fixture.authenticator.is_valid_now(*principal));
  fixture.loop.advance(kMoment);
  EXPECT_FALSE(fixture.authenticator.is_valid_now(*principal))
      << "another process may have revoked it by now";
  const auto again = [&] {
    return fixture.loop.await<Status>(
        [&](auto done) { fixture.authenticator.revalidate(*principal, std::move(done)); });
  };
  EXPECT_TRUE(again());
  EXPECT_TRUE(fixture.authenticator.is_valid_now(*principal));
  fixture.revoke("000000000001");
  fixture.loop.advance(kKeyCacheTtlMax + kMoment);
  EXPECT_FALSE(again());
  EXPECT_FALSE(fixture.authenticator.is_valid_now(*principal));
}

AE_TEST("gate/an open route tells whoever shows a good key more, and refuses nobody") {
  AuthFixture fixture;
  EXPECT_EQ(fixture.authenticate({}, true)->role, Role::admin);
  const std::string key = fixture.make("000000000001", "viewer");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  EXPECT_EQ(fixture.status(key), 200);
  EXPECT_EQ(fixture.authenticate({}, true)->role, Role::none);
  EXPECT_EQ(fixture.authenticate("Bearer nonsense", true)->role, Role::none);
  EXPECT_EQ(fixture.authenticate(key, true)->role, Role::viewer);
}

AE_TEST(
    "limits/of one key so many requests come in, then it is told when; others are not kept out") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "viewer");
  const std::string other = fixture.make("000000000002", "viewer");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(fixture.status(key), 200) << i;
  const auto answer = fixture.authenticate(key);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().status, 429);
  EXPECT_EQ(answer.error().body.text("code"), "rate_limited");
  EXPECT_EQ(answer.error().retry_after, std::chrono::milliseconds(100));
  EXPECT_EQ(fixture.rejected["requests"], 1);
  EXPECT_EQ(fixture.status(other), 200);
  EXPECT_TRUE(fixture.authenticate(key, true)) << "health is open";
  fixture.loop.advance(answer.error().retry_after);
  EXPECT_EQ(fixture.status(key), 200);
}

AE_TEST("limits/strangers who ask whether we are there are counted by their address") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "viewer");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  ASSERT_EQ(fixture.status(key), 200);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(fixture.authenticate({}, true)) << i;
  const auto refused = fixture.authenticate("Bearer nonsense", true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 429);
  EXPECT_TRUE(fixture.authenticate(key, true));
  fixture.address = "127.0.0.2";
  EXPECT_TRUE(fixture.authenticate({}, true));
}

AE_TEST("limits/without keys we are not limited, unless it was said") {
  AuthFixture fixture;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(fixture.status(), 200);
  Authenticator limited(fixture.loop, fixture.steady, fixture.store, fixture.registry,
                        {.allow_without_keys = true, .rate = 1, .limit_keyless = true});
  Authenticator none(fixture.loop, fixture.steady, fixture.store, fixture.registry,
                     {.allow_without_keys = true, .rate = 0, .limit_keyless = true});
  int in = 0, all = 0;
  for (int i = 0; i < 10; ++i) {
    limited.authenticate({.authorization = {}, .address = "a"},
                         [&](auto principal) { in += principal ? 1 : 0; });
    none.authenticate({.authorization = {}, .address = "a"},
                      [&](auto principal) { all += principal ? 1 : 0; });
  }
  EXPECT_EQ(in, 2);
  EXPECT_EQ(all, 10);
}

AE_TEST("limits/who tries keys is soon told to wait; a good key from the same address comes in") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "viewer");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  const std::string wrong = "Bearer " + to_text(KeyText{"00000000000f", kSecret});
  int refused = 0;
  for (int i = 0; i < 100; ++i) refused += fixture.status(wrong) == 401 ? 1 : 0;
  EXPECT_EQ(refused, 20);
  EXPECT_EQ(fixture.status(wrong), 429);
  EXPECT_EQ(fixture.rejected["failed_keys"], 81);
  EXPECT_EQ(fixture.status(), 401) << "who sends none tries none";
  EXPECT_EQ(fixture.status(key), 200);
  fixture.address = "127.0.0.2";
  EXPECT_EQ(fixture.status(wrong), 401);
}

using Right = std::expected<std::shared_ptr<void>, ApiResponse>;

Principal numbered_key(std::size_t i) {
  const std::string key = "k" + std::to_string(i);
  return {.role = Role::viewer, .key = key, .by = {}, .caller = key};
}

// Up to the limit per caller, then up to the total; all are released.
void expect_shares(AuthFixture& fixture, const std::function<Right(const Principal&)>& acquire,
                   std::size_t each, std::size_t all, std::string_view type) {
  std::vector<std::shared_ptr<void>> open;
  for (std::size_t i = 0; i < each; ++i) {
    auto right = acquire(numbered_key(0));
    ASSERT_TRUE(right);
    open.push_back(*right);
  }
  const auto refused = acquire(numbered_key(0));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 429);
  EXPECT_TRUE(acquire(numbered_key(1)));
  open.pop_back();
  EXPECT_TRUE(acquire(numbered_key(0)));
  for (std::size_t i = 0; open.size() < all; ++i) {
    auto right = acquire(numbered_key(1 + i));
    ASSERT_TRUE(right);
    open.push_back(*right);
  }
  EXPECT_FALSE(acquire(numbered_key(100'000)));
  open.clear();
  EXPECT_TRUE(acquire(numbered_key(100'000)));
  EXPECT_EQ(fixture.rejected[std::string(type)], 2);
}

AE_TEST("limits/live streams are counted for each key and in all, and given back") {
  AuthFixture fixture;
  expect_shares(
      fixture,
      [&](const Principal& principal) { return fixture.authenticator.acquire_stream(principal); },
      kStreamsPerCaller, kStreamsMax, "streams");
}

AE_TEST("limits/requests that wait are counted for each key and in all, and given back") {
  AuthFixture fixture;
  expect_shares(
      fixture,
      [&](const Principal& principal) { return fixture.authenticator.acquire_wait(principal); },
      kLongPollsPerCaller, kLongPollsMax, "waits");
}

AE_TEST("limits/streams take no wait's place, and waits no stream's") {
  AuthFixture fixture;
  std::vector<std::shared_ptr<void>> open;
  for (std::size_t i = 0; i < kLongPollsMax; ++i) {
    auto right = fixture.authenticator.acquire_wait(numbered_key(i));
    ASSERT_TRUE(right);
    open.push_back(*right);
  }
  EXPECT_FALSE(fixture.authenticator.acquire_wait(numbered_key(0)));
  EXPECT_TRUE(fixture.authenticator.acquire_stream(numbered_key(0)));
}

AE_TEST("limits/without keys only what is open in all is limited, unless it was said") {
  AuthFixture fixture;
  const Principal us{.role = Role::admin, .key = {}, .by = {}, .caller = "127.0.0.1"};
  std::vector<std::shared_ptr<void>> open;
  for (std::size_t i = 0; i < kStreamsMax; ++i) {
    auto right = fixture.authenticator.acquire_stream(us);
    ASSERT_TRUE(right) << i;
    open.push_back(*right);
  }
  EXPECT_FALSE(fixture.authenticator.acquire_stream(us));
  Authenticator limited(fixture.loop, fixture.steady, fixture.store, fixture.registry,
                        {.allow_without_keys = true, .rate = 10, .limit_keyless = true});
  open.clear();
  for (std::size_t i = 0; i < kStreamsPerCaller; ++i)
    open.push_back(limited.acquire_stream(us).value());
  EXPECT_FALSE(limited.acquire_stream(us));
}

AE_TEST("gate/of a store that went backwards nothing is remembered but that it had keys") {
  testing::TestLoop loop;
  Steady steady(loop);
  store::MemoryDisk disk;
  store::MemoryStore store(loop, loop, disk);
  const auto add = [&](const std::string& id) {
    const store::ApiKey key{.id = id,
                            .secret_hash = hash_of_secret(kSecret),
                            .role = "admin",
                            .name = {},
                            .created_by = {},
                            .revoked_by = {},
                            .created_at = loop.now()};
    const auto done = loop.await<Result<void>>(
        [&](auto answer) { store.append_audit_entry(store::key_created(key), std::move(answer)); });
    AE_CHECK(done.has_value(), "recorded");
  };
  const store::MemoryDisk empty = disk;
  add("000000000001");
  const store::MemoryDisk backup = disk;
  add("000000000002");
  RegistryCache registry(steady, store, {});
  Authenticator authenticator(loop, steady, store, registry, {.allow_without_keys = true});
  const auto read = [&] {
    return loop.await<Status>(
        [&](auto done) { registry.refresh_if_older(Duration(0), std::move(done)); });
  };
  const auto status = [&] {
    loop.advance(std::chrono::seconds(1));
    const auto answer = loop.await<AuthFixture::Answer>([&](auto done) {
      authenticator.authenticate({.authorization = {}, .address = "127.0.0.1"}, std::move(done));
    });
    return answer ? 200 : answer.error().status;
  };
  ASSERT_TRUE(read());
  EXPECT_EQ(registry.registry().keys().size(), 2u);
  EXPECT_EQ(status(), 401);
  disk = backup;
  ASSERT_TRUE(read());
  EXPECT_EQ(registry.registry().keys().size(), 1u);
  EXPECT_TRUE(registry.registry().key("000000000001") != nullptr);
  disk = empty;
  EXPECT_EQ(status(), 401) << "it had keys";
  EXPECT_EQ(registry.registry().keys().size(), 0u);
}

}  // namespace
}  // namespace ae::api
