// Leases and the estimate of the database's clock.
#include "store/postgres/db_clock.h"

#include "store/postgres/postgres_fixture_test.h"

namespace ae::store {
namespace {

AE_TEST("postgres/leases use the database's clock") {
  const OwnSchema schema;
  PostgresFixture fixture(schema.name());
  ASSERT_TRUE(fixture.open());
  const auto database_now = [] {
    return sql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")[1].instant(0, 0);
  };
  const Instant before = database_now();
  const auto born = fixture.commit(PostgresFixture::create_claimed("j0"));
  ASSERT_TRUE(born);
  const Instant after = database_now();
  EXPECT_GE(born->lease->lease_until, before + conformance::kLease);
  EXPECT_LE(born->lease->lease_until, after + conformance::kLease);
  // The estimate is never ahead of the database, and only slightly behind.
  const Instant store_time = fixture.store().now();
  EXPECT_LE(store_time, database_now());
  EXPECT_GE(store_time, before);
  EXPECT_FALSE(fixture.store().owned());
  ASSERT_TRUE(fixture.commit(PostgresFixture::create("j1")));
  const auto leases = fixture.claim(5);
  ASSERT_TRUE(leases);
  ASSERT_EQ(leases->size(), 1u);
  EXPECT_EQ(fixture.load("j1")->row.lease_until, leases->at(0).lease_until);
}

// A clock with settable time, to simulate a suspended machine.
class ScriptedClock final : public async::SteadyClock {
 public:
  Duration since_start() override { return time; }
  Duration time{};
};

Instant at_ms(std::int64_t ms) { return Instant{ms * 1000}; }

AE_TEST("postgres/the clock estimate is never ahead of the database and follows it back") {
  using std::chrono::milliseconds;
  ScriptedClock steady;
  postgres::DatabaseClock clock(steady);
  const auto on_response = [&](std::int64_t database_ms, int sent_ms, int received) {
    steady.time = milliseconds(received);
    clock.on_response(at_ms(database_ms), milliseconds(sent_ms));
  };
  on_response(5000, 100'000, 100'010);
  EXPECT_EQ(clock.now(), at_ms(5000));
  EXPECT_EQ(clock.latest(), at_ms(5010));
  on_response(5019, 100'018, 100'020);  // a faster response is more exact
  EXPECT_EQ(clock.now(), at_ms(5019));
  EXPECT_EQ(clock.latest(), at_ms(5021));
  on_response(5025, 100'020, 100'040);  // a slow response is consistent with the estimate
  EXPECT_EQ(clock.now(), at_ms(5039));
  EXPECT_EQ(clock.latest(), at_ms(5045));
  on_response(3000, 100'050, 100'052);  // set back
  EXPECT_EQ(clock.now(), at_ms(3000));
  EXPECT_EQ(clock.latest(), at_ms(3002));
  on_response(2990, 100'045, 100'055);  // requested earlier: less exact for `latest`
  EXPECT_EQ(clock.latest(), at_ms(3005));
}

// A lease of 30 s is claimed; the machine is suspended for an hour at one point between the claim
// and the send. Wherever that is, the check for remaining time must fail.
AE_TEST("postgres/a suspended machine never sends after its lease has expired") {
  using std::chrono::seconds;
  constexpr int kPoints = 6;
  for (const bool has_estimate : {false, true}) {
    for (int suspended_at = 0; suspended_at <= kPoints; ++suspended_at) {
      ScriptedClock steady;
      steady.time = seconds(100);
      std::int64_t database = 5000;  // in seconds; never suspended
      int point = 0;
      const auto pass = [&](int span) {
        steady.time += seconds(span);
        database += span;
      };
      const auto maybe_suspend = [&] {
        if (++point == suspended_at) pass(3600);
      };
      postgres::DatabaseClock clock(steady);
      const auto request_time = [&](bool suspends) {
        const Duration sent_at = clock.before_request();
        if (suspends) maybe_suspend();  // before the request arrives
        const Instant database_time = at_ms(database * 1000);
        if (suspends) maybe_suspend();  // before the response arrives
        clock.on_response(database_time, sent_at);
        return database_time;
      };
      if (has_estimate) request_time(false);
      const Instant lease_until = request_time(true) + seconds(30);  // the claim
      maybe_suspend();                                               // before the declaration
      request_time(true);                                            // the declaration
      maybe_suspend();                                               // before the send
      const bool may_send = clock.latest() < lease_until;
      const bool lease_holds = at_ms(database * 1000) < lease_until;
      // Only a suspend before the database granted the lease does not shorten it.
      EXPECT_EQ(lease_holds, suspended_at <= 1) << suspended_at;
      EXPECT_TRUE(!may_send || lease_holds) << suspended_at << " " << has_estimate;
      EXPECT_TRUE(may_send || suspended_at != 0) << "without a suspend it may send";
      EXPECT_LE(clock.now(), at_ms(database * 1000)) << suspended_at;
      EXPECT_GE(clock.latest(), at_ms(database * 1000)) << suspended_at;
    }
  }
}

}  // namespace
}  // namespace ae::store
