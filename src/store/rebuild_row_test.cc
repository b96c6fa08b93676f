// The statements and differences of a rebuilt row, in a dialect with visible types.
#include "store/rebuild_row.h"

#include <fmt/core.h>

#include "testing/test.h"

namespace ae::store {
namespace {

class TestDialect final : public SqlDialect {
 public:
  std::string parameter(ExpectedValue::Type type, int index) const override {
    return (type == ExpectedValue::Type::text ? "t" : "n") + std::to_string(index);
  }
  std::string_view is_same() const override { return "is"; }
  std::string literal(ExpectedValue::Type, const std::string& expression) const override {
    return fmt::format("quote({})", expression);
  }
};

ExpectedRow row_of_job() {
  return {.table = "jobs",
          .key = {integer_column("id", std::int64_t{7})},
          .columns = {text_column("agent", "a"), time_column("wake_at", std::nullopt)}};
}

AE_TEST("rebuild row/a comparison reads the equality and both values of each column") {
  const ExpectedRow row = row_of_job();
  const SqlStatement statement = comparison_of(row, TestDialect());
  EXPECT_EQ(statement.sql,
            "SELECT agent is t1, quote(agent), quote(t1), wake_at is n2, quote(wake_at), quote(n2) "
            "FROM jobs WHERE id = n3");
  ASSERT_EQ(statement.parameters.size(), 3u);
  EXPECT_EQ(statement.parameters[0]->text, "a");
  EXPECT_TRUE(statement.parameters[1]->is_null);
  EXPECT_EQ(statement.parameters[2]->number, 7);
}

AE_TEST("rebuild row/only columns that differ are reported and updated") {
  const ExpectedRow row = row_of_job();
  std::vector<Difference> differences;
  const std::vector<ColumnComparison> columns{{.is_same = true, .stored = {}, .derived = {}},
                                              {.is_same = false, .stored = "5", .derived = "NULL"}};
  const RowComparison found = compare_row(row, columns, differences);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].column, "wake_at");
  EXPECT_EQ(differences[0].stored, "5");
  EXPECT_EQ(differences[0].derived, "NULL");
  EXPECT_EQ(rewrite_of(row, found, TestDialect()).sql,
            "UPDATE jobs SET wake_at = n1 WHERE id = n2");
}

AE_TEST("rebuild row/a missing row is inserted with its key") {
  const ExpectedRow row = row_of_job();
  std::vector<Difference> differences;
  const RowComparison found = compare_row(row, std::nullopt, differences);
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].derived, "a row");
  EXPECT_EQ(rewrite_of(row, found, TestDialect()).sql,
            "INSERT INTO jobs(id, agent, wake_at) VALUES(n1, t2, n3)");
}

AE_TEST("rebuild row/labels are compared regardless of their order") {
  EXPECT_FALSE(compare_labels({{"b", "2"}, {"a", "1"}}, {{"a", "1"}, {"b", "2"}}));
  const auto difference = compare_labels({{"b", "2"}}, {{"c", "3"}, {"a", "1"}});
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->stored, "b=2");
  EXPECT_EQ(difference->derived, "a=1, c=3");
}

}  // namespace
}  // namespace ae::store
