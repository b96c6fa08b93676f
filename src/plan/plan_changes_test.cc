#include "plan/plan_changes.h"

#include "engine/fixtures/job_fixture_test.h"
#include "testing/test.h"

namespace ae::engine::testing {
namespace {

constexpr std::string_view kBefore =
    "{'nodes':[{'id':'a','kind':'tool','tool':'get','args':{'n':1}},"
    "{'id':'b','kind':'tool','tool':'pay','needs':['a']}],"
    "'tools':{'get':{'effect':'read'},'pay':{'effect':'idempotent'}},'output':'${ .steps.b }'}";

AE_TEST("plan_changes/equal plans have no changes") {
  EXPECT_EQ(plan_changes(json(kBefore), json(kBefore)), json("[]"));
}

AE_TEST("plan_changes/changes list nodes, tools and parts with the fields that differ") {
  const Value after = json(
      "{'nodes':[{'id':'a','kind':'tool','tool':'get','args':{'n':2},'when':'${ true }'},"
      "{'id':'c','kind':'tool','tool':'get'}],"
      "'tools':{'get':{'effect':'read','max_attempts':3},'pay':{'effect':'idempotent'}},"
      "'deadline':'1h','output':'${ .steps.c }'}");
  EXPECT_EQ(plan_changes(json(kBefore), after),
            json("[{'change':'added','fields':[],'path':'deadline'},"
                 "{'change':'changed','fields':['args','when'],'path':'nodes.a'},"
                 "{'change':'added','fields':[],'path':'nodes.c'},"
                 "{'change':'changed','fields':[],'path':'output'},"
                 "{'change':'changed','fields':['max_attempts'],'path':'tools.get'},"
                 "{'change':'removed','fields':[],'path':'nodes.b'}]"));
}

}  // namespace
}  // namespace ae::engine::testing
