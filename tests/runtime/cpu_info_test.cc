// The description of the CPU: made-up /proc and /sys folders of an x86 and an Arm machine, and
// nothing at all.
#include "runtime/cpu_info.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/arm_cpu.h"

namespace quire {
namespace {

namespace fs = std::filesystem;

class CpuInfoTest : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(root_); }

  void write(const std::string& path, const std::string& text) {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void write_cache(int index, const std::string& level, const std::string& type,
                   const std::string& size) {
    const std::string cache = "sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    write(cache + "/level", level + "\n");
    write(cache + "/type", type + "\n");
    write(cache + "/size", size + "\n");
  }

  fs::path root_ = fs::temp_directory_path() / ("quire_cpu_info_test_" + std::to_string(getpid()));
};

TEST_F(CpuInfoTest, ReadsX86) {
  const std::string flags = "flags\t\t: fpu sse avx2 fma nonsense avx512f\n";
  write(
      "proc/cpuinfo",
      "processor\t: 0\nmodel name\t: Some CPU @ 2.6GHz\nphysical id\t: 0\ncore id\t\t: 0\n" +
          flags +
          "\nprocessor\t: 1\nmodel name\t: Some CPU @ 2.6GHz\nphysical id\t: 0\ncore id\t\t: 0\n" +
          flags +
          "\nprocessor\t: 2\nmodel name\t: Some CPU @ 2.6GHz\nphysical id\t: 1\ncore id\t\t: 0\n" +
          flags);
  write_cache(0, "1", "Data", "48K");
  write_cache(1, "1", "Instruction", "32K");
  write_cache(2, "2", "Unified", "2048K");
  write_cache(3, "3", "Unified", "32M");
  const CpuInfo info = read_cpu_info(root_.string());
  EXPECT_EQ(info.model, "Some CPU @ 2.6GHz");
  EXPECT_EQ(info.cores, 2);
  EXPECT_EQ(info.l1d_bytes, 48 << 10);
  EXPECT_EQ(info.l2_bytes, 2 << 20);
  EXPECT_EQ(info.l3_bytes, 32 << 20);
  EXPECT_EQ(info.features, (std::vector<std::string>{"avx2", "fma", "avx512f"}));
}

TEST_F(CpuInfoTest, ReadsArm) {
  write("proc/cpuinfo",
        "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n");
  const CpuInfo info = read_cpu_info(root_.string());
  EXPECT_EQ(info.model, "Arm Neoverse-N1");
  EXPECT_EQ(info.cores, 0);
  EXPECT_EQ(info.features, (std::vector<std::string>{"asimd", "sve"}));
}

TEST(ArmCpu, CoresHaveNamesOrNumbers) {
  EXPECT_EQ(arm_core_name("0x41", "0xd4f"), "Arm Neoverse-V2");
  EXPECT_EQ(arm_core_name("0x61", "0x022"), "implementer 0x61 part 0x022");
  EXPECT_EQ(arm_core_name("0x41", ""), "");
}

TEST(ArmCpu, FeaturesComeFromTheAuxiliaryVector) {
  EXPECT_TRUE(arm_features(0, 0).empty());
  EXPECT_EQ(arm_features(1u << 1 | 1u << 20, 1u << 14),
            (std::vector<std::string>{"asimd", "asimddp", "bf16"}));
  EXPECT_TRUE(arm_has_bf16(1u << 14));
  EXPECT_FALSE(arm_has_bf16(1u << 13));
}

TEST_F(CpuInfoTest, MissingAndBrokenFilesLeaveDefaults) {
  const CpuInfo nothing = read_cpu_info((root_ / "nowhere").string());
  EXPECT_EQ(nothing.model, "unknown");
  EXPECT_EQ(nothing.l1d_bytes, 0);
  EXPECT_TRUE(nothing.features.empty());
  write("proc/cpuinfo", "no colon here\n:\nmodel name:\n");
  write_cache(0, "1", "Data", "huge");
  write_cache(1, "2", "Unified", "-5K");
  write_cache(2, "3", "Unified", "12T");
  const CpuInfo broken = read_cpu_info(root_.string());
  EXPECT_EQ(broken.model, "unknown");
  EXPECT_EQ(broken.l1d_bytes, 0);
  EXPECT_EQ(broken.l2_bytes, 0);
  EXPECT_EQ(broken.l3_bytes, 0);
}

TEST(CpuInfo, DescribesThisMachine) {
  const CpuInfo info = cpu_info();
  EXPECT_GE(info.logical_cpus, 1);
  EXPECT_FALSE(info.model.empty());
}

}  // namespace
}  // namespace quire
