import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.net.ServerSocket;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.nodemanager.NodeManager;
import org.apache.hadoop.yarn.server.resourcemanager.ResourceManager;

/** A part of a YARN on free ports of the loopback: `manager FOLDER HDFS` is its resource manager, `node FOLDER` a node.
 *
 * They are two programs, as the pages of only one of them work in a JVM. The manager writes Hadoop's settings into the
 * folder's `conf`, which the node and clients read. Each prints a line that begins with `ready`, the manager's with the
 * address of its pages, and ends when its standard input does.
 */
public final class MiniYarn {
    public static void main(String[] arguments) {
        try {
            File folder = new File(arguments[1]).getAbsoluteFile();
            String said = arguments[0].equals("manager") ? startManager(folder, arguments[2]) : startNode(folder);
            System.out.println("ready " + said);
            while (System.in.read() >= 0) { }
        } catch (Throwable failure) {
            failure.printStackTrace();
        }
        Runtime.getRuntime().halt(0);
    }

    private static String startManager(File folder, String files) throws Exception {
        ResourceManager manager = new ResourceManager();
        manager.init(settings(folder, files));
        manager.start();
        File conf = new File(folder, "conf");
        conf.mkdirs();
        for (String name : new String[] {"core-site.xml", "hdfs-site.xml", "yarn-site.xml"}) {
            try (OutputStream out = new FileOutputStream(new File(conf, name))) {
                manager.getConfig().writeXml(out);
            }
        }
        return "http://" + manager.getConfig().get(YarnConfiguration.RM_WEBAPP_ADDRESS);
    }

    private static String startNode(File folder) {
        YarnConfiguration conf = new YarnConfiguration();
        conf.addResource(new Path(new File(folder, "conf/yarn-site.xml").toURI()));
        NodeManager node = new NodeManager();
        node.init(conf);
        node.start();
        return node.getNMContext().getNodeId().toString();
    }

    private static Configuration settings(File folder, String files) throws Exception {
        YarnConfiguration conf = new YarnConfiguration();
        conf.set("fs.defaultFS", files);
        conf.setInt("dfs.replication", 1);
        for (String name : new String[] {
                YarnConfiguration.RM_ADDRESS, YarnConfiguration.RM_SCHEDULER_ADDRESS,
                YarnConfiguration.RM_ADMIN_ADDRESS, YarnConfiguration.RM_RESOURCE_TRACKER_ADDRESS,
                YarnConfiguration.NM_ADDRESS, YarnConfiguration.NM_LOCALIZER_ADDRESS,
                YarnConfiguration.NM_WEBAPP_ADDRESS}) {
            conf.set(name, "127.0.0.1:0");
        }
        // Of its ports this is the only one that the manager does not write into its settings.
        try (ServerSocket free = new ServerSocket(0)) {
            conf.set(YarnConfiguration.RM_WEBAPP_ADDRESS, "127.0.0.1:" + free.getLocalPort());
        }
        conf.set(YarnConfiguration.NM_LOCAL_DIRS, new File(folder, "local").getPath());
        conf.set(YarnConfiguration.NM_LOG_DIRS, new File(folder, "logs").getPath());
        conf.setBoolean(YarnConfiguration.NM_DISK_HEALTH_CHECK_ENABLE, false);
        conf.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
        conf.setInt(YarnConfiguration.NM_PMEM_MB, 4096);
        conf.setInt(YarnConfiguration.NM_VCORES, 8);
        conf.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 128);
        conf.setInt(YarnConfiguration.RM_NM_HEARTBEAT_INTERVAL_MS, 200);
        // Logs and launch scripts of containers stay: tests look into them.
        conf.setInt(YarnConfiguration.DEBUG_NM_DELETE_DELAY_SEC, 3600);
        conf.set("yarn.scheduler.capacity.root.queues", "default");
        conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
        // In so small a cluster one application master takes much of it.
        conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1.0");
        return conf;
    }
}
