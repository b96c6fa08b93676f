// The gate: who comes in with which key, how soon that ends, and what happens while the store does not tell.
#include "api/gate.h"

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

// A store that can be told to fail, and a process with a gate before it.
struct House {
  testing::TestLoop loop;
  Steady steady{loop};
  store::MemoryStore memory{loop, loop};
  std::optional<store::Fault> fault;  // of every read
  std::size_t reads = 0;
  store::FaultyStore store{loop, memory, {.script = [this](const store::Call& call) {
                             if (call.method != store::Method::audit_log) return store::Fault::none;
                             ++reads;
                             return fault.value_or(store::Fault::none);
                           }}};
  std::vector<std::string> warnings;
  LiveRegistry registry{steady, store, [this](const std::string& w) { warnings.push_back(w); }};
  std::map<std::string, int, std::less<>> rejected;
  Gate gate{loop,
            steady,
            store,
            registry,
            {.open_without_keys = true, .rate = 10, .rejected = [this](std::string_view type) {
               ++rejected[std::string(type)];
             }}};

  House() {
    Status read =
        loop.await<Status>([&](auto done) { registry.within(Duration(0), std::move(done)); });
    AE_CHECK(read.has_value(), "the registry is read at the start");
  }
  void record(const store::AuditEntry& entry) {
    const auto done =
        loop.await<Result<void>>([&](auto answer) { memory.record(entry, std::move(answer)); });
    AE_CHECK(done.has_value(), "recorded");
  }
  // Made by another process: nobody tells this one.
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

  using Answer = std::expected<Pass, ApiResponse>;
  Answer knock(std::optional<std::string> authorization = {}, bool open = false) {
    return loop.await<Answer>([&](auto done) {
      gate.knock({.authorization = authorization, .address = address, .open = open},
                 std::move(done));
    });
  }
  std::string address = "127.0.0.1";
  int status(std::optional<std::string> authorization = {}) {
    const Answer answer = knock(std::move(authorization));
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
  House house;
  EXPECT_EQ(house.knock()->role, Role::admin);
  const std::string key = house.make("000000000001", "viewer");
  house.loop.advance(kKeysAge + kMoment);
  EXPECT_EQ(house.status(), 401);
  const auto pass = house.knock(key);
  ASSERT_TRUE(pass);
  EXPECT_EQ(pass->role, Role::viewer);
  EXPECT_EQ(pass->by, "key:000000000001 n");
}

AE_TEST("gate/where others can connect nobody comes in without a key") {
  House house;
  Gate gate(house.loop, house.steady, house.store, house.registry, {.open_without_keys = false});
  const auto answer = house.loop.await<House::Answer>([&](auto done) {
    gate.knock({.authorization = {}, .address = "10.0.0.1"}, std::move(done));
  });
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().status, 401);
}

AE_TEST("gate/whatever is wrong with a key is told in the same words") {
  House house;
  const std::string good = house.make("000000000001", "admin");
  const std::string expired = house.make("000000000002", "admin", std::chrono::seconds(1));
  const std::string revoked = house.make("000000000003", "admin");
  const std::string newer = house.make("000000000004", "emperor");
  house.revoke("000000000003");
  house.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(house.status(good), 200);
  std::string other_secret = good;
  other_secret.back() = 'b';
  std::optional<std::string> said;
  for (const std::string& bad : {expired, revoked, newer, other_secret,
                                 std::string("Bearer ") + to_text(KeyText{"00000000000f", kSecret}),
                                 std::string("Bearer nonsense")}) {
    const auto answer = house.knock(bad);
    ASSERT_FALSE(answer) << bad;
    EXPECT_EQ(answer.error().status, 401) << bad;
    const std::string body = canonical(answer.error().body);
    if (!said) said = body;
    EXPECT_EQ(body, *said) << bad;
    EXPECT_EQ(body.find("aaaa"), std::string::npos);
  }
  EXPECT_EQ(house.status("bearer  " + good.substr(7)), 200) << "the scheme's case means nothing";
}

AE_TEST("gate/a header that holds no key is told how one is sent, whatever else it holds") {
  House house;
  const std::string good = house.make("000000000001", "admin");
  house.loop.advance(std::chrono::seconds(1));
  for (const std::string& bad :
       {std::string("Bearer "), std::string("Bearer"), std::string("Basic YTpi"), good.substr(7),
        std::string("Token ") + good.substr(7), std::string()}) {
    const auto answer = house.knock(bad);
    ASSERT_FALSE(answer) << bad;
    EXPECT_EQ(answer.error().status, 401) << bad;
    const std::string body = canonical(answer.error().body);
    EXPECT_NE(body.find("`Authorization: Bearer aek_"), body.npos) << body;
    EXPECT_EQ(body.find("aaaa"), std::string::npos) << "what was sent is not said again";
  }
}

AE_TEST("gate/who stays is let go within a second of the end of their key, once, and others stay") {
  House house;
  const std::string viewer = house.make("000000000001", "viewer");
  const std::string brief = house.make("000000000002", "viewer", std::chrono::seconds(20));
  const std::string other = house.make("000000000003", "viewer");
  house.loop.advance(std::chrono::seconds(1));
  std::vector<std::string> gone;
  std::vector<std::shared_ptr<void>> watched;
  for (const std::string& key : {viewer, viewer, brief, other}) {
    const auto pass = house.knock(key);
    ASSERT_TRUE(pass);
    watched.push_back(house.gate.watch(*pass, [&gone, id = pass->key](const Error& why) {
      EXPECT_EQ(why.code, Code::unauthorized);
      gone.push_back(id);
    }));
  }
  watched[1].reset();  // it went by itself
  house.loop.advance(std::chrono::seconds(10));
  EXPECT_TRUE(gone.empty());
  house.fault = store::Fault::fail_before;
  house.revoke("000000000001");
  house.loop.advance(std::chrono::seconds(3));
  EXPECT_TRUE(gone.empty()) << "the store says nothing";
  house.fault.reset();
  house.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(gone, std::vector<std::string>{"000000000001"});
  house.loop.advance(std::chrono::seconds(10));
  EXPECT_EQ(gone, (std::vector<std::string>{"000000000001", "000000000002"}));
  watched.clear();
  house.loop.advance(std::chrono::seconds(1));
  const std::size_t reads = house.reads;
  house.loop.advance(std::chrono::minutes(1));
  EXPECT_EQ(house.reads, reads) << "nobody stays, and the store is asked nothing";
}

AE_TEST("gate/who stays where there were no keys goes when the first one is made") {
  House house;
  const auto pass = house.knock();
  ASSERT_TRUE(pass);
  int gone = 0;
  const auto watched = house.gate.watch(*pass, [&](const Error&) { ++gone; });
  house.loop.advance(std::chrono::seconds(5));
  EXPECT_EQ(gone, 0);
  house.make("000000000001", "admin");
  house.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(gone, 1);
}

AE_TEST("gate/a revoked key counts for a second at most, and the gate stays closed") {
  House house;
  const std::string key = house.make("000000000001", "admin");
  EXPECT_EQ(house.status(key), 200);
  house.revoke("000000000001");
  house.loop.advance(std::chrono::seconds(1));
  EXPECT_EQ(house.status(key), 401);
  EXPECT_EQ(house.status(), 401) << "no key is live, and it does not open";
  EXPECT_FALSE(house.gate.has_live_key());
}

AE_TEST("gate/a key expires by the store's clock, without a word of the store") {
  House house;
  const std::string key = house.make("000000000001", "admin", std::chrono::milliseconds(300));
  house.loop.advance(kKeysAge + kMoment);
  const std::string other = house.make("000000000002", "admin", std::chrono::milliseconds(300));
  house.loop.advance(kKeysAge + kMoment);
  EXPECT_EQ(house.status(key), 401);
  house.make("000000000003", "admin");
  EXPECT_EQ(house.status(other), 401);
}

AE_TEST(
    "gate/questions that come together share one reading, and those that follow soon need none") {
  House house;
  const std::string key = house.make("000000000001", "admin");
  house.loop.advance(kKeysAge + kMoment);
  const std::size_t before = house.reads;
  int in = 0;
  for (int i = 0; i < 15; ++i) {
    house.gate.knock({.authorization = key, .address = "127.0.0.1"},
                     [&](auto pass) { in += pass ? 1 : 0; });
  }
  EXPECT_TRUE(house.loop.run_until([&] { return in == 15; }));
  EXPECT_EQ(house.status(key), 200);
  EXPECT_EQ(house.reads, before + 1);
}

AE_TEST(
    "gate/while the store is not available what was known counts for a second, then nobody comes "
    "in") {
  House house;
  const std::string key = house.make("000000000001", "admin");
  house.loop.advance(kKeysAge + kMoment);
  ASSERT_EQ(house.status(key), 200);
  house.fault = store::Fault::fail_before;
  house.loop.advance(kKeysAge + kMoment);
  EXPECT_EQ(house.status(key), 200);
  house.loop.advance(kKeysAge + kMoment);
  const auto closed = house.knock(key);
  ASSERT_FALSE(closed);
  EXPECT_EQ(closed.error().status, 503);
  EXPECT_EQ(closed.error().body.text("code"), "unavailable");
  EXPECT_EQ(house.status(), 503);
  EXPECT_TRUE(house.knock({}, true)) << "health is asked without a key, and answers";
  house.fault.reset();
  EXPECT_EQ(house.status(key), 200);
}

AE_TEST(
    "gate/how a process fares is told by the keys that were read last, also while the store is "
    "away") {
  House house;
  const std::string key = house.make("000000000001", "viewer");
  house.loop.advance(kKeysAge + kMoment);
  ASSERT_EQ(house.status(key), 200);
  house.fault = store::Fault::fail_before;
  house.loop.advance(2 * kKeysAgeMax);
  const auto asks = [&](std::optional<std::string> shows) {
    return house.loop.await<House::Answer>([&](auto done) {
      house.gate.knock(
          {.authorization = std::move(shows), .address = "127.0.0.1", .of_process = true},
          std::move(done));
    });
  };
  EXPECT_EQ(house.status(key), 503);
  EXPECT_TRUE(asks(key));
  EXPECT_EQ(asks({}).error().status, 401);
}

AE_TEST("gate/a store that is silent is waited for, not for ever") {
  House house;
  const std::string key = house.make("000000000001", "admin");
  house.fault = store::Fault::crash_before;  // it answers nothing any more
  house.loop.advance(kKeysAge + kMoment);
  std::optional<House::Answer> answer;
  house.gate.knock({.authorization = key, .address = "127.0.0.1"},
                   [&](House::Answer a) { answer = std::move(a); });
  house.loop.advance(kKeysWait - kMoment);
  EXPECT_FALSE(answer);
  house.loop.advance(2 * kMoment);
  ASSERT_TRUE(answer);
  ASSERT_FALSE(*answer);
  EXPECT_EQ(answer->error().status, 503);
}

AE_TEST("gate/who came in is looked at again before the answer goes out") {
  House house;
  const std::string key = house.make("000000000001", "viewer");
  house.loop.advance(kKeysAge + kMoment);
  const auto pass = house.knock(key);
  ASSERT_TRUE(pass);
  const auto again = [&](const Pass& of) {
    return house.loop.await<Status>([&](auto done) { house.gate.look_again(of, std::move(done)); });
  };
  EXPECT_TRUE(again(*pass));
  house.revoke("000000000001");
  house.loop.advance(std::chrono::seconds(1));
  ASSERT_FALSE(again(*pass));
  EXPECT_EQ(again(*pass).error().code, Code::unauthorized);
  EXPECT_FALSE(again(Pass{.role = Role::admin, .key = {}, .by = {}}))
      << "who came in while there were no keys";
  EXPECT_TRUE(again(Pass{})) << "who asked for what nobody needs a key for";
}

AE_TEST("gate/what asks no store is told for a second at most by keys that were read before") {
  House house;
  const std::string key = house.make("000000000001", "viewer");
  house.loop.advance(kKeysAge + kMoment);
  const auto pass = house.knock(key);
  ASSERT_TRUE(pass);
  EXPECT_TRUE(house.gate.may_now(*pass));
  house.loop.advance(kKeysAgeMax);
  EXPECT_TRUE(house.gate.may_now(*pass));
  house.loop.advance(kMoment);
  EXPECT_FALSE(house.gate.may_now(*pass)) << "another process may have revoked it by now";
  const auto again = [&] {
    return house.loop.await<Status>(
        [&](auto done) { house.gate.look_again(*pass, std::move(done)); });
  };
  EXPECT_TRUE(again());
  EXPECT_TRUE(house.gate.may_now(*pass));
  house.revoke("000000000001");
  house.loop.advance(kKeysAgeMax + kMoment);
  EXPECT_FALSE(again());
  EXPECT_FALSE(house.gate.may_now(*pass));
}

AE_TEST("gate/an open route tells whoever shows a good key more, and refuses nobody") {
  House house;
  EXPECT_EQ(house.knock({}, true)->role, Role::admin);
  const std::string key = house.make("000000000001", "viewer");
  house.loop.advance(kKeysAge + kMoment);
  EXPECT_EQ(house.status(key), 200);
  EXPECT_EQ(house.knock({}, true)->role, Role::nobody);
  EXPECT_EQ(house.knock("Bearer nonsense", true)->role, Role::nobody);
  EXPECT_EQ(house.knock(key, true)->role, Role::viewer);
}

AE_TEST(
    "limits/of one key so many requests come in, then it is told when; others are not kept out") {
  House house;
  const std::string key = house.make("000000000001", "viewer");
  const std::string other = house.make("000000000002", "viewer");
  house.loop.advance(kKeysAge + kMoment);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(house.status(key), 200) << i;
  const auto answer = house.knock(key);
  ASSERT_FALSE(answer);
  EXPECT_EQ(answer.error().status, 429);
  EXPECT_EQ(answer.error().body.text("code"), "rate_limited");
  EXPECT_EQ(answer.error().retry_after, std::chrono::milliseconds(100));
  EXPECT_EQ(house.rejected["requests"], 1);
  EXPECT_EQ(house.status(other), 200);
  EXPECT_TRUE(house.knock(key, true)) << "health is open";
  house.loop.advance(answer.error().retry_after);
  EXPECT_EQ(house.status(key), 200);
}

AE_TEST("limits/strangers who ask whether we are there are counted by their address") {
  House house;
  const std::string key = house.make("000000000001", "viewer");
  house.loop.advance(kKeysAge + kMoment);
  ASSERT_EQ(house.status(key), 200);
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(house.knock({}, true)) << i;
  const auto refused = house.knock("Bearer nonsense", true);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 429);
  EXPECT_TRUE(house.knock(key, true));
  house.address = "127.0.0.2";
  EXPECT_TRUE(house.knock({}, true));
}

AE_TEST("limits/without keys we are not limited, unless it was said") {
  House house;
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(house.status(), 200);
  Gate said(house.loop, house.steady, house.store, house.registry,
            {.open_without_keys = true, .rate = 1, .limits_us = true});
  Gate none(house.loop, house.steady, house.store, house.registry,
            {.open_without_keys = true, .rate = 0, .limits_us = true});
  int in = 0, all = 0;
  for (int i = 0; i < 10; ++i) {
    said.knock({.authorization = {}, .address = "a"}, [&](auto pass) { in += pass ? 1 : 0; });
    none.knock({.authorization = {}, .address = "a"}, [&](auto pass) { all += pass ? 1 : 0; });
  }
  EXPECT_EQ(in, 2);
  EXPECT_EQ(all, 10);
}

AE_TEST("limits/who tries keys is soon told to wait; a good key from the same address comes in") {
  House house;
  const std::string key = house.make("000000000001", "viewer");
  house.loop.advance(kKeysAge + kMoment);
  const std::string wrong = "Bearer " + to_text(KeyText{"00000000000f", kSecret});
  int refused = 0;
  for (int i = 0; i < 100; ++i) refused += house.status(wrong) == 401 ? 1 : 0;
  EXPECT_EQ(refused, 20);
  EXPECT_EQ(house.status(wrong), 429);
  EXPECT_EQ(house.rejected["failed_keys"], 81);
  EXPECT_EQ(house.status(), 401) << "who sends none tries none";
  EXPECT_EQ(house.status(key), 200);
  house.address = "127.0.0.2";
  EXPECT_EQ(house.status(wrong), 401);
}

using Right = std::expected<std::shared_ptr<void>, ApiResponse>;

Pass key_no(std::size_t i) {
  const std::string key = "k" + std::to_string(i);
  return {.role = Role::viewer, .key = key, .by = {}, .caller = key};
}

// As many as one caller may have, then as many as there may be; all are given back.
void expect_shares(House& house, const std::function<Right(const Pass&)>& ask, std::size_t each,
                   std::size_t all, std::string_view type) {
  std::vector<std::shared_ptr<void>> open;
  for (std::size_t i = 0; i < each; ++i) {
    auto right = ask(key_no(0));
    ASSERT_TRUE(right);
    open.push_back(*right);
  }
  const auto refused = ask(key_no(0));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status, 429);
  EXPECT_TRUE(ask(key_no(1)));
  open.pop_back();
  EXPECT_TRUE(ask(key_no(0)));
  for (std::size_t i = 0; open.size() < all; ++i) {
    auto right = ask(key_no(1 + i));
    ASSERT_TRUE(right);
    open.push_back(*right);
  }
  EXPECT_FALSE(ask(key_no(100'000)));
  open.clear();
  EXPECT_TRUE(ask(key_no(100'000)));
  EXPECT_EQ(house.rejected[std::string(type)], 2);
}

AE_TEST("limits/live streams are counted for each key and in all, and given back") {
  House house;
  expect_shares(
      house, [&](const Pass& pass) { return house.gate.stream(pass); }, kStreamsPerCaller,
      kStreamsMax, "streams");
}

AE_TEST("limits/requests that wait are counted for each key and in all, and given back") {
  House house;
  expect_shares(
      house, [&](const Pass& pass) { return house.gate.wait(pass); }, kWaitsPerCaller, kWaitsMax,
      "waits");
}

AE_TEST("limits/streams take no wait's place, and waits no stream's") {
  House house;
  std::vector<std::shared_ptr<void>> open;
  for (std::size_t i = 0; i < kWaitsMax; ++i) {
    auto right = house.gate.wait(key_no(i));
    ASSERT_TRUE(right);
    open.push_back(*right);
  }
  EXPECT_FALSE(house.gate.wait(key_no(0)));
  EXPECT_TRUE(house.gate.stream(key_no(0)));
}

AE_TEST("limits/without keys only what is open in all is limited, unless it was said") {
  House house;
  const Pass us{.role = Role::admin, .key = {}, .by = {}, .caller = "127.0.0.1"};
  std::vector<std::shared_ptr<void>> open;
  for (std::size_t i = 0; i < kStreamsMax; ++i) {
    auto right = house.gate.stream(us);
    ASSERT_TRUE(right) << i;
    open.push_back(*right);
  }
  EXPECT_FALSE(house.gate.stream(us));
  Gate limited(house.loop, house.steady, house.store, house.registry,
               {.open_without_keys = true, .rate = 10, .limits_us = true});
  open.clear();
  for (std::size_t i = 0; i < kStreamsPerCaller; ++i) open.push_back(limited.stream(us).value());
  EXPECT_FALSE(limited.stream(us));
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
        [&](auto answer) { store.record(store::key_created(key), std::move(answer)); });
    AE_CHECK(done.has_value(), "recorded");
  };
  const store::MemoryDisk empty = disk;
  add("000000000001");
  const store::MemoryDisk backup = disk;
  add("000000000002");
  LiveRegistry registry(steady, store, {});
  Gate gate(loop, steady, store, registry, {.open_without_keys = true});
  const auto read = [&] {
    return loop.await<Status>([&](auto done) { registry.within(Duration(0), std::move(done)); });
  };
  const auto status = [&] {
    loop.advance(std::chrono::seconds(1));
    const auto answer = loop.await<House::Answer>([&](auto done) {
      gate.knock({.authorization = {}, .address = "127.0.0.1"}, std::move(done));
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
