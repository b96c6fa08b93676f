#include "store/memory/memory_store.h"

#include "store/conformance_test.h"
#include "testing/test.h"

namespace ae::store {
namespace {

class MemoryDriver final : public conformance::StoreDriver {
 public:
  MemoryDriver(testing::TestLoop& loop, bool owned) : loop_(loop), owned_(owned) { restart(); }
  Store& store() override { return *store_; }
  void restart() override { open({}); }
  Store* fair_by(const std::string& label) override {
    open(label);
    return store_.get();
  }

 private:
  void open(std::optional<std::string> fair_by) {
    store_ = std::make_unique<MemoryStore>(
        loop_, loop_, disk_, MemoryStore::Options{.owned = owned_, .fair_by = std::move(fair_by)});
  }

  testing::TestLoop& loop_;
  const bool owned_;
  MemoryDisk disk_;
  std::unique_ptr<MemoryStore> store_;
};

const bool owned = conformance::register_conformance("store_memory", [](testing::TestLoop& loop) {
  return std::make_unique<MemoryDriver>(loop, true);
});
const bool shared = conformance::register_conformance(
    "store_memory_shared",
    [](testing::TestLoop& loop) { return std::make_unique<MemoryDriver>(loop, false); });

AE_TEST("store_memory/a copy of a disk is a backup") {
  testing::TestLoop loop;
  MemoryDisk disk;
  MemoryStore store(loop, loop, disk);
  const auto create = [&](const char* id) {
    Batch b{.job = JobId(id), .authority = Batch::Create{store::NewJob{.agent = "a"}}};
    b.sealed = conformance::sealed(id, 1);
    return loop.await<Result<CommitResult>>([&](auto done) { store.commit(b, std::move(done)); });
  };
  ASSERT_TRUE(create("j1"));
  MemoryDisk backup = disk;
  ASSERT_TRUE(create("j2"));
  MemoryStore restored(loop, loop, backup);
  const auto rows = loop.await<Result<std::vector<JobRow>>>(
      [&](auto done) { restored.query({}, std::move(done)); });
  ASSERT_EQ(rows->size(), 1u);
  EXPECT_EQ(rows->at(0).id.text, "j1");
}

}  // namespace
}  // namespace ae::store
