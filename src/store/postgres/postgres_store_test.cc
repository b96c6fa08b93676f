// The PostgreSQL driver: the conformance suite, and what only a shared database can do wrong.
#include <algorithm>
#include <set>
#include <thread>

#include "store/conformance_test.h"
#include "store/postgres/postgres_fixture_test.h"

namespace ae::store {
namespace {

class PostgresDriver final : public conformance::Driver {
 public:
  explicit PostgresDriver(testing::TestLoop& loop) : loop_(loop) { restart(); }
  Store& store() override { return *store_; }
  void restart() override {
    store_.reset();
    auto opened = PostgresStore::open(
        {.url = server().url(), .loop = loop_, .schema = schema_.name(), .clock = &loop_});
    AE_CHECK(opened.has_value(), opened.error().message);
    store_ = *std::move(opened);
  }

 private:
  testing::TestLoop& loop_;
  OwnSchema schema_;
  std::unique_ptr<PostgresStore> store_;
};

[[maybe_unused]] const bool registered =
    conformance::register_conformance("store_postgres", [](testing::TestLoop& loop) {
      return std::make_unique<PostgresDriver>(loop);
    });

}  // namespace
}  // namespace ae::store
