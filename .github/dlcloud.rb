# The formula of a tap; the release workflow fills in version and digest.
class Dlcloud < Formula
  desc "Find the EC2 instance that runs a deep-learning job for the least money"
  homepage "https://github.com/dlcloud/dlcloud"
  url "https://github.com/dlcloud/dlcloud/releases/download/v@VERSION@/dlcloud-@VERSION@.tar.gz"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on "uv" => :build
  depends_on "python@3.13"

  def install
    python = Formula["python@3.13"].opt_bin/"python3.13"
    system "uv", "venv", "--python", python, libexec
    system "uv", "pip", "install", "--python", libexec/"bin/python", "#{buildpath}[local]"
    bin.install_symlink libexec/"bin/dlcloud"
    generate_completions_from_executable(bin/"dlcloud", "completion")
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/dlcloud --version")
  end
end
