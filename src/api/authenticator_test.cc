// Tests of Authenticator: accepted keys, how soon a revocation takes effect, and an unavailable
// store.
#include "api/authenticator.h"

#include <fmt/core.h>

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

AE_TEST("authenticator/a key of an id and a secret has exactly one text form") {
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

AE_TEST("authenticator/without keys every client is an admin, until any process creates a key") {
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

AE_TEST("authenticator/a server that requires keys rejects requests without one") {
  AuthFixture fixture;
  Authenticator authenticator(fixture.loop, fixture.steady, fixture.store, fixture.registry,
                              {.allow_without_keys = false});
  const auto answer = fixture.loop.await<AuthFixture::Answer>([&](auto done) {
    authenticator.authenticate({.authorization = {}, .address = "10.0.0.1"}, std::move(done));
  });
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().status, 401);
}

AE_TEST("authenticator/every invalid key gets the same response") {
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
  EXPECT_EQ(fixture.status("bearer  " + good.substr(7)), 200)
      << "the case of the scheme is ignored";
}

AE_TEST("authenticator/a header without a key gets a response that shows how to send one") {
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
    EXPECT_EQ(body.find("aaaa"), std::string::npos) << "the response does not repeat the header";
  }
}

AE_TEST("authenticator/a stream is closed once, within a second of the end of its key") {
  AuthFixture fixture;
  const std::string viewer = fixture.make("000000000001", "viewer");
  const std::string brief = fixture.make("000000000002", "viewer", std::chrono::seconds(20));
  const std::string other = fixture.make("000000000003", "viewer");
  fixture.loop.advance(std::chrono::seconds(1));
  std::vector<std::string> closed;
  std::vector<std::shared_ptr<void>> watched;
  for (const std::string& key : {viewer, viewer, brief, other}) {
    const auto principal = fixture.authenticate(key);
    ASSERT_TRUE(principal);
    watched.push_back(
        fixture.authenticator.watch(*principal, [&closed, id = principal->key](const Error& why) {
          EXPECT_EQ(why.code, Code::unauthorized);
          closed.push_back(id);
        }));
  }
  watched[1].reset();  // closed by its client
  fixture.loop.advance(std::chrono::seconds(10));
  EXPECT_TRUE(closed.empty());
  fixture.fault = store::Fault::fail_before;
  fixture.revoke("000000000001");
  fixture.loop.advance(std::chrono::seconds(3));
  EXPECT_TRUE(closed.empty()) << "the store does not respond";
  fixture.fault.reset();
  fixture.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(closed, std::vector<std::string>{"000000000001"});
  fixture.loop.advance(std::chrono::seconds(10));
  EXPECT_EQ(closed, (std::vector<std::string>{"000000000001", "000000000002"}));
  watched.clear();
  fixture.loop.advance(std::chrono::seconds(1));
  const std::size_t reads = fixture.reads;
  fixture.loop.advance(std::chrono::minutes(1));
  EXPECT_EQ(fixture.reads, reads) << "without streams the store is not read";
}

AE_TEST("authenticator/a stream opened without keys is closed when the first key is created") {
  AuthFixture fixture;
  const auto principal = fixture.authenticate();
  ASSERT_TRUE(principal);
  int closed = 0;
  const auto watched = fixture.authenticator.watch(*principal, [&](const Error&) { ++closed; });
  fixture.loop.advance(std::chrono::seconds(5));
  EXPECT_EQ(closed, 0);
  fixture.make("000000000001", "admin");
  fixture.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(closed, 1);
}

AE_TEST("authenticator/a revoked key is accepted for at most a second, and keys stay required") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "admin");
  EXPECT_EQ(fixture.status(key), 200);
  fixture.revoke("000000000001");
  fixture.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(fixture.status(key), 401);
  EXPECT_EQ(fixture.status(), 401) << "no key is live, and keys are still required";
  EXPECT_FALSE(fixture.authenticator.has_live_key());
}

AE_TEST("authenticator/a key expires by the store's clock") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "admin", std::chrono::milliseconds(300));
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  const std::string other = fixture.make("000000000002", "admin", std::chrono::milliseconds(300));
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  EXPECT_EQ(fixture.status(key), 401);
  fixture.make("000000000003", "admin");
  EXPECT_EQ(fixture.status(other), 401);
}

AE_TEST("authenticator/concurrent requests share one read of the keys, and later ones need none") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "admin");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  const std::size_t before = fixture.reads;
  int accepted = 0;
  for (int i = 0; i < 15; ++i) {
    fixture.authenticator.authenticate({.authorization = key, .address = "127.0.0.1"},
                                       [&](auto principal) { accepted += principal ? 1 : 0; });
  }
  EXPECT_TRUE(fixture.loop.run_until([&] { return accepted == 15; }));
  EXPECT_EQ(fixture.status(key), 200);
  EXPECT_EQ(fixture.reads, before + 1);
}

AE_TEST("authenticator/without the store cached keys are accepted for a second, then it is 503") {
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
  EXPECT_TRUE(fixture.authenticate({}, true)) << "health needs no key";
  fixture.fault.reset();
  EXPECT_EQ(fixture.status(key), 200);
}

AE_TEST("authenticator/without the store process routes accept the keys read last") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "viewer");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  ASSERT_EQ(fixture.status(key), 200);
  fixture.fault = store::Fault::fail_before;
  fixture.loop.advance(2 * kKeyCacheTtlMax);
  const auto authenticate = [&](std::optional<std::string> authorization) {
    return fixture.loop.await<AuthFixture::Answer>([&](auto done) {
      fixture.authenticator.authenticate({.authorization = std::move(authorization),
                                          .address = "127.0.0.1",
                                          .is_process_route = true},
                                         std::move(done));
    });
  };
  EXPECT_EQ(fixture.status(key), 503);
  EXPECT_TRUE(authenticate(key));
  EXPECT_EQ(authenticate({}).error().status, 401);
}

AE_TEST("authenticator/a store that does not respond is 503 after the timeout") {
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

AE_TEST("authenticator/revalidation rejects revoked keys and, once a key exists, keyless clients") {
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
      << "a client accepted before there were keys";
  EXPECT_TRUE(again(Principal{})) << "a client of an open route";
}

AE_TEST("authenticator/a principal is valid without a read of the store for at most a second") {
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

AE_TEST("authenticator/an open route accepts every client, and a valid key has its role") {
  AuthFixture fixture;
  EXPECT_EQ(fixture.authenticate({}, true)->role, Role::admin);
  const std::string key = fixture.make("000000000001", "viewer");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  EXPECT_EQ(fixture.status(key), 200);
  EXPECT_EQ(fixture.authenticate({}, true)->role, Role::none);
  EXPECT_EQ(fixture.authenticate("Bearer nonsense", true)->role, Role::none);
  EXPECT_EQ(fixture.authenticate(key, true)->role, Role::viewer);
}

AE_TEST("limits/a key over its rate gets 429 with the time to wait; other keys are not limited") {
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

AE_TEST("limits/requests to open routes without a valid key are limited by address") {
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

AE_TEST("limits/without keys requests are limited only if limit_keyless is set") {
  AuthFixture fixture;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(fixture.status(), 200);
  Authenticator limited(fixture.loop, fixture.steady, fixture.store, fixture.registry,
                        {.allow_without_keys = true, .rate = 1, .limit_keyless = true});
  Authenticator none(fixture.loop, fixture.steady, fixture.store, fixture.registry,
                     {.allow_without_keys = true, .rate = 0, .limit_keyless = true});
  int accepted = 0, all = 0;
  for (int i = 0; i < 10; ++i) {
    limited.authenticate({.authorization = {}, .address = "a"},
                         [&](auto principal) { accepted += principal ? 1 : 0; });
    none.authenticate({.authorization = {}, .address = "a"},
                      [&](auto principal) { all += principal ? 1 : 0; });
  }
  EXPECT_EQ(accepted, 2);
  EXPECT_EQ(all, 10);
}

AE_TEST("limits/invalid keys are limited by address; a valid key from there is accepted") {
  AuthFixture fixture;
  const std::string key = fixture.make("000000000001", "viewer");
  fixture.loop.advance(kKeyCacheTtl + kMoment);
  const std::string wrong = "Bearer " + to_text(KeyText{"00000000000f", kSecret});
  int refused = 0;
  for (int i = 0; i < 100; ++i) refused += fixture.status(wrong) == 401 ? 1 : 0;
  EXPECT_EQ(refused, 20);
  EXPECT_EQ(fixture.status(wrong), 429);
  EXPECT_EQ(fixture.rejected["failed_keys"], 81);
  EXPECT_EQ(fixture.status(), 401) << "a request without a key is not an invalid key";
  EXPECT_EQ(fixture.status(key), 200);
  fixture.address = "127.0.0.2";
  EXPECT_EQ(fixture.status(wrong), 401);
}

using Permit = std::expected<std::shared_ptr<void>, ApiResponse>;

Principal numbered_key(std::size_t i) {
  const std::string key = fmt::format("k{}", i);
  return {.role = Role::viewer, .key = key, .by = {}, .caller = key};
}

// Up to the limit per caller, then up to the total; all are released.
void expect_shares(AuthFixture& fixture, const std::function<Permit(const Principal&)>& acquire,
                   std::size_t each, std::size_t all, std::string_view type) {
  std::vector<std::shared_ptr<void>> open;
  for (std::size_t i = 0; i < each; ++i) {
    auto permit = acquire(numbered_key(0));
    ASSERT_TRUE(permit);
    open.push_back(*permit);
  }
  const auto refused = acquire(numbered_key(0));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 429);
  EXPECT_TRUE(acquire(numbered_key(1)));
  open.pop_back();
  EXPECT_TRUE(acquire(numbered_key(0)));
  for (std::size_t i = 0; open.size() < all; ++i) {
    auto permit = acquire(numbered_key(1 + i));
    ASSERT_TRUE(permit);
    open.push_back(*permit);
  }
  EXPECT_FALSE(acquire(numbered_key(100'000)));
  open.clear();
  EXPECT_TRUE(acquire(numbered_key(100'000)));
  EXPECT_EQ(fixture.rejected[std::string(type)], 2);
}

AE_TEST("limits/streams are limited for each key and in total, and released") {
  AuthFixture fixture;
  expect_shares(
      fixture,
      [&](const Principal& principal) { return fixture.authenticator.acquire_stream(principal); },
      kStreamsPerCaller, kStreamsMax, "streams");
}

AE_TEST("limits/waits are limited for each key and in total, and released") {
  AuthFixture fixture;
  expect_shares(
      fixture,
      [&](const Principal& principal) { return fixture.authenticator.acquire_wait(principal); },
      kLongPollsPerCaller, kLongPollsMax, "waits");
}

AE_TEST("limits/waits do not count as streams") {
  AuthFixture fixture;
  std::vector<std::shared_ptr<void>> open;
  for (std::size_t i = 0; i < kLongPollsMax; ++i) {
    auto permit = fixture.authenticator.acquire_wait(numbered_key(i));
    ASSERT_TRUE(permit);
    open.push_back(*permit);
  }
  EXPECT_FALSE(fixture.authenticator.acquire_wait(numbered_key(0)));
  EXPECT_TRUE(fixture.authenticator.acquire_stream(numbered_key(0)));
}

AE_TEST("limits/without keys streams are limited for each address only if limit_keyless is set") {
  AuthFixture fixture;
  const Principal keyless{.role = Role::admin, .key = {}, .by = {}, .caller = "127.0.0.1"};
  std::vector<std::shared_ptr<void>> open;
  for (std::size_t i = 0; i < kStreamsMax; ++i) {
    auto permit = fixture.authenticator.acquire_stream(keyless);
    ASSERT_TRUE(permit) << i;
    open.push_back(*permit);
  }
  EXPECT_FALSE(fixture.authenticator.acquire_stream(keyless));
  Authenticator limited(fixture.loop, fixture.steady, fixture.store, fixture.registry,
                        {.allow_without_keys = true, .rate = 10, .limit_keyless = true});
  open.clear();
  for (std::size_t i = 0; i < kStreamsPerCaller; ++i)
    open.push_back(limited.acquire_stream(keyless).value());
  EXPECT_FALSE(limited.acquire_stream(keyless));
}

AE_TEST("authenticator/a restored store replaces the cached keys, and keys stay required") {
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
  EXPECT_EQ(status(), 401) << "there were keys before";
  EXPECT_EQ(registry.registry().keys().size(), 0u);
}

}  // namespace
}  // namespace ae::api
